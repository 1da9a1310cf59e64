"""Text, JSON and JSON lines from damaged files: errors of one line that name the file, for any content."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from cost_models.errors import InputError
from cost_models.files import documents
from cost_models.files.documents import csv_rows, json_lines, parse_json, read_json, read_text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r":1:1: not valid JSON"),
        (b'{"a": 1,\n oops}', r":2:2: not valid JSON"),
        (b'\n{"a": "\xff"}', r":2: not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a': this key is there twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number has thousands of digits"),
    ],
)
def test_what_is_not_json(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_json(path)
    assert str(error.value).startswith(str(path))
    assert len(str(error.value).splitlines()) == 1


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "a\0b"):
        with pytest.raises(InputError):
            read_text(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_file_without_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        read_text(Path("/dev/zero"), 1 << 20)


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"a": 1}\r\n\n[2]\n3'))
    assert list(json_lines(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", [2]), (f"{path}:4", 3)]
    path.write_bytes(b"1\n2\nx")
    with pytest.raises(InputError, match=r"x\.jsonl\.gz:3:1: not valid JSON"):
        list(json_lines(path))
    path.write_bytes(gzip.compress(b"1\n2\n")[:-3])
    with pytest.raises(InputError, match="damaged gzip file"):
        list(json_lines(path))


def test_lines_go_on_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK", 7)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{10**size}\n" for size in range(12)))
    assert [value for _, value in json_lines(path)] == [10**size for size in range(12)]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "endless.jsonl"
    os.mkfifo(path)
    written = []

    def write() -> None:
        try:
            with path.open("wb") as pipe:
                pipe.write(b"1\n")
                while True:
                    written.append(pipe.write(b"9" * (1 << 20)))
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(InputError, match=r"endless\.jsonl:2: is longer than 16 MiB; does the file have line ends\?"):
        list(json_lines(path))
    writer.join()
    assert sum(written) < 20 << 20


def test_infinity_is_left_to_the_ranges_of_fields() -> None:
    assert parse_json("[Infinity, 1e999]", "x") == [float("inf"), float("inf")]


def test_csv_rows_have_the_numbers_of_their_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n1,"two\r\nlines"\r\n3,4')
    assert list(csv_rows(path)) == [(1, ["a", "b"]), (4, ["1", "two\r\nlines"]), (5, ["3", "4"])]


def test_a_cell_beyond_what_csv_allows_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"a\n1\n{'x' * 200_000}\n")
    with pytest.raises(InputError, match=r"rows\.csv:3: not a CSV file: field larger"):
        list(csv_rows(path))
