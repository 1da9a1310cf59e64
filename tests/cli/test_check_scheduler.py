"""`servesim check-scheduler`, as a user types it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import main
from tests.conftest import ROOT

KEPT = ROOT / "tests" / "recordings"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a recording of 12 steps, to be changed."""
    folder = tmp_path / "copy"
    shutil.copytree(KEPT / "tiny_apc", folder)
    return folder


def edit(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_one_line_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-scheduler", str(KEPT / "tiny_apc"), str(KEPT / "tiny_oversize")]) == 0
    assert capsys.readouterr().out == "tiny_apc: identical, 12 steps\ntiny_oversize: identical, 34 steps\n"


def test_packed_files_are_read(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for stem in ("trace", "steps"):
        plain = copy / f"{stem}.jsonl"
        (copy / f"{stem}.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    assert main(["check-scheduler", str(copy)]) == 0


def test_the_first_divergence_is_shown_with_both_sides(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(copy / "steps.jsonl", lambda lines: lines[1]["hits"].update(B=4))
    assert main(["check-scheduler", str(copy), str(KEPT / "tiny_apc")]) == 1
    first, *rest, last = capsys.readouterr().out.splitlines()
    assert first == "copy: diverges after 1 equal steps"
    assert rest[0] == "  hits: recorded {'B': 4}, replayed {'B': 8}"
    assert rest[1].startswith("  step before (equal): {'step': 0")
    assert "of 16 blocks free; running 2: A (13 of 14 computed, 4 blocks), B" in rest[2]
    assert last == "tiny_apc: identical, 12 steps"


def test_the_order_of_a_mapping_counts(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(copy / "steps.jsonl", lambda lines: lines[1].update(emitted=dict(reversed(lines[1]["emitted"].items()))))
    assert main(["check-scheduler", str(copy)]) == 1
    assert "emitted: recorded {'B': 1, 'A': 1}, replayed {'A': 1, 'B': 1}" in capsys.readouterr().out


def test_another_setting_diverges(copy: Path) -> None:
    config = copy / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"enable_prefix_caching": False}))
    assert main(["check-scheduler", str(copy)]) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lines: lines.pop(), "the record ends here, the replay continues"),
        (lambda lines: lines.append(lines[-1]), "the replay ends here, the record continues"),
    ],
)
def test_one_side_is_longer(
    copy: Path, change: Callable[[list[dict[str, Any]]], object], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(copy / "steps.jsonl", change)
    assert main(["check-scheduler", str(copy)]) == 1
    assert text in capsys.readouterr().out


BROKEN = {
    "config.json": [
        ("", "config.json:1:1: not valid JSON"),
        ("[]", "config.json"),
        ('{"max_num_seq": 3}', "unknown key; did you mean max_num_seqs or"),
        ('{"max_num_seqs": 0}', "must be at least 1"),
        ('{"spec": {"method": "magic", "k": 1}}', "spec.method: 'magic' is not known"),
        (
            '{"allocation": "contiguous", "enable_prefix_caching": true}',
            "config.json: allocation: prefix caching shares blocks",
        ),
        ('{"time": {"base": 3}}', "time.base: unknown key"),
    ],
    "trace.jsonl": [
        ("{", "trace.jsonl:1:2: not valid JSON"),
        ("3", "trace.jsonl:1: top level: expected a mapping"),
        ('{"id": "A", "arrival_ns": 0, "num_decode_tokens": 1}', "trace.jsonl:1: num_prefill_tokens: missing"),
        ('{"id": "A", "num_prefill_tokens": 2, "num_decode_tokens": 1}', "arrival_time: missing"),
        (
            '{"id": "A", "arrival_time": Infinity, "num_prefill_tokens": 2, "num_decode_tokens": 1}',
            "trace.jsonl:1: arrival_time: expected a number",
        ),
        (
            '{"id": ["A"], "arrival_ns": 0, "num_prefill_tokens": 2, "num_decode_tokens": 1}',
            "trace.jsonl:1: id: expected a text or a whole number",
        ),
        (
            '{"id": "A", "arrival_ns": 0, "num_prefill_tokens": 2, "num_decode_tokens": 1, "parent": "A"}',
            "descends from itself",
        ),
        (
            '{"id": "A", "arrival_ns": 0, "num_prefill_tokens": 2, "num_decode_tokens": 1, "parent": "Z"}',
            "is not among the requests",
        ),
    ],
    "steps.jsonl": [
        ("no", "steps.jsonl:1:1: not valid JSON"),
        ("[]", "steps.jsonl:1: top level: expected a mapping"),
        ('{"accepted": {"A": [1]}}', "steps.jsonl:1: accepted.A: expected 2 whole numbers"),
        ('{"proposed": {"A": -1}}', "steps.jsonl:1: proposed.A: expected an integer"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 100 + "]" * 100, "nested more than 64 levels deep"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "text"), [(name, *case) for name, cases in BROKEN.items() for case in cases]
)
def test_broken_files_are_one_line(
    copy: Path, name: str, content: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / name).write_text(content)
    assert main(["check-scheduler", str(copy)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("servesim: ")
    assert text in error
    assert error.count("\n") == 1


def test_truncated_and_missing_files_are_one_line(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = copy / "steps.jsonl"
    (copy / "steps.jsonl.gz").write_bytes(gzip.compress(steps.read_bytes())[:-20])
    steps.unlink()
    assert main(["check-scheduler", str(copy)]) == 2
    (copy / "steps.jsonl.gz").unlink()
    assert main(["check-scheduler", str(copy)]) == 2
    assert main(["check-scheduler", str(copy / "nowhere")]) == 2
    assert capsys.readouterr().err.count("\n") == 3
