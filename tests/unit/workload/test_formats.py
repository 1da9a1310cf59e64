"""Trace files: their reading, the detection of formats, and errors about mistakes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.files import documents
from simulator.errors import InputError
from simulator.workload.formats import FORMATS, detect, read_trace
from simulator.workload.tables import UNSET

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
NATIVE = "arrival_s,prompt_tokens,output_tokens\n"
ROW = '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 6}\n'


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a file into the working directory, so that errors name it by its bare name."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, content: str | bytes) -> Path:
        data = content.encode() if isinstance(content, str) else content
        Path(name).write_bytes(data)
        return Path(name)

    return write_file


def error_of(path: Path, name: str = "auto") -> str:
    with pytest.raises(InputError) as error:
        read_trace(path, name)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what is read -------------------------------------------------------------------------------------------


def test_azure_2023(write) -> None:
    path = write("a.csv", AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n")
    table = read_trace(path)
    assert np.diff(table.arrival_ns).tolist() == [52_000_000]
    assert table.prompt_tokens.tolist() == [4808, 3180]
    assert table.output_tokens.tolist() == [10, 8]
    assert table.max_tokens.tolist() == [UNSET, UNSET]
    assert (table.class_names, table.ids, table.extras) == (("default",), None, {})


def test_azure_2024_has_a_time_zone_and_whole_seconds(write) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
    assert np.diff(read_trace(write("a.csv", AZURE + rows)).arrival_ns).tolist() == [990_070_000]


def test_native_csv_with_every_column(write) -> None:
    header = (
        "id,arrival_s,prompt_tokens,output_tokens,max_tokens,session,class,tenant,priority,deadline_s,cancel_s,"
        "prefix_id,prefix_tokens\n"
    )
    rows = "a,0.25,100,20,64,s1,chat,acme,-2,1.5,30,sys,40\nb,0.5,90,10,,,,,,,,,\n"
    table = read_trace(write("t.csv", header + rows))
    assert table.arrival_ns.tolist() == [250_000_000, 500_000_000]
    assert table.ids == ("a", "b")
    assert table.max_tokens.tolist() == [64, UNSET]
    assert (table.class_names, table.class_id.tolist()) == (("chat", "default"), [0, 1])
    assert (table.prefix_id.tolist(), table.prefix_tokens.tolist()) == ([0, -1], [40, 0])
    assert {name: column.tolist() for name, column in table.extras.items()} == {
        "session": ["s1", ""],
        "tenant": ["acme", ""],
        "priority": [-2, 0],
        "deadline_ns": [1_500_000_000, -1],
        "cancel_ns": [30_000_000_000, -1],
    }


def test_native_json_lines_say_the_same_as_csv(write) -> None:
    csv = read_trace(write("t.csv", "arrival_s,prompt_tokens,output_tokens,class,id\n0.1,5,6,chat,7\n1e-3,8,9,,x\n"))
    rows = (
        {"arrival_s": 0.1, "prompt_tokens": 5, "output_tokens": 6, "class": "chat", "id": 7},
        {"id": "x", "arrival_s": 1e-3, "prompt_tokens": 8, "output_tokens": 9, "class": None},
    )
    jsonl = read_trace(write("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    assert list(csv) == list(jsonl)
    assert csv[1].arrival_ns == 1_000_000


def test_json_numbers_keep_all_their_digits(write) -> None:
    path = write("t.jsonl", '{"arrival_s": 123456789.123456789, "prompt_tokens": 1, "output_tokens": 1}')
    assert read_trace(path).arrival_ns.tolist() == [123456789_123456789]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_gzip_line_ends_byte_order_mark_and_blank_lines(write, packed: bool, end: str, bom: str) -> None:
    text = bom + end.join(["", NATIVE.strip(), "0,1,2", "  ", " 1.5 , 3,4".replace(" ,", ","), "", ""])
    data = gzip.compress(text.encode()) if packed else text.encode()
    table = read_trace(write("t.bin", data))
    assert table.arrival_ns.tolist() == [0, 1_500_000_000]
    assert table.output_tokens.tolist() == [2, 4]


def test_columns_may_stand_in_any_order_and_be_quoted(write) -> None:
    table = read_trace(write("t.csv", '"output_tokens", "class",arrival_s,prompt_tokens\n2,"a, b",0,1\n'))
    assert (table.output_tokens.tolist(), table.class_names) == ([2], ("a, b",))


def test_a_file_of_several_blocks_is_read_as_one(write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK", 40)
    lines = [f"{i},{i + 1},{2 * i + 1}\n" for i in range(10)]
    assert read_trace(write("t.csv", NATIVE + "".join(lines))).prompt_tokens.tolist() == list(range(1, 11))
    lines[7] = "7,8,x\n"
    assert error_of(write("t.csv", NATIVE + "".join(lines))).startswith("t.csv:9: output_tokens: ")
    rows = [ROW.replace("}", f', "id": {i}}}') for i in (1, 2, 3, 4, 2)]
    assert error_of(write("t.jsonl", "".join(rows))) == "t.jsonl:5: id: '2' is already on line 2"


# --- detection ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name"),
    [(AZURE, "azure"), (NATIVE, "native"), (ROW, "native"), ("prompt_tokens,output,arrival_s\n", "native")],
)
def test_the_header_tells_the_format(write, content: str, name: str) -> None:
    assert detect(write("t.txt", content)) == name


def test_an_unknown_header_lists_the_formats(write) -> None:
    message = error_of(write("t.csv", "Timestamp,Model,Tokens\n1,GPT,2\n"))
    assert message == (
        "t.csv:1: unknown header 'Timestamp,Model,Tokens'; choose the format with --trace-format: "
        "azure (TIMESTAMP,ContextTokens,GeneratedTokens), native (arrival_s,prompt_tokens,output_tokens)"
    )


def test_an_ambiguous_header_is_an_error(write) -> None:
    path = write("t.csv", "TIMESTAMP,ContextTokens,output_tokens\n")
    assert error_of(path) == "t.csv:1: could be of the formats azure and native; choose one with --trace-format"
    assert error_of(path, "azure").startswith("t.csv:1: 'output_tokens': unknown column")


def test_a_named_format_is_not_detected(write) -> None:
    assert error_of(write("t.csv", NATIVE), "azure").startswith("t.csv:1: 'arrival_s': unknown column; known: ")
    assert error_of(Path("t.csv"), "azur") == "'azur' is not a known trace format; did you mean azure?"


def test_every_format_says_what_it_is() -> None:
    assert set(FORMATS) == {"azure", "native"}
    assert all(entry.description for entry in FORMATS.values())


# --- files that are wrong -----------------------------------------------------------------------------------


def test_files_that_cannot_be_read(write, tmp_path: Path) -> None:
    assert error_of(Path("none.csv")) == "none.csv: cannot be read: No such file or directory"
    Path("folder").mkdir()
    assert error_of(Path("folder")) == "folder: cannot be read: Is a directory"
    assert error_of(write("e.csv", "")) == "e.csv: is empty"
    assert error_of(write("e.csv", "\n \n")) == "e.csv: is empty"
    assert error_of(write("e.csv", gzip.compress(b""))) == "e.csv: is empty"
    assert error_of(write("g.gz", gzip.compress(NATIVE.encode() * 9)[:-9])).startswith("g.gz: damaged gzip file: ")
    assert error_of(write("g.gz", b"\x1f\x8b123456789")).startswith("g.gz: damaged gzip file: ")


def test_files_that_are_not_text(write) -> None:
    assert error_of(write("l.csv", (NATIVE + "0,1,2\n").encode() + b"1,\xe9,2\n")).startswith(
        "l.csv:3: not UTF-8 text; "
    )
    assert error_of(write("l.csv", NATIVE.encode("utf-16"))) == "l.csv:1: not UTF-8 text; save the file as UTF-8"
    assert (
        error_of(write("l.csv", "\ufeff".encode() + NATIVE.encode() + b"\xff"))
        == "l.csv:2: not UTF-8 text; save the file as UTF-8"
    )


@pytest.mark.parametrize("header", [AZURE, NATIVE])
def test_a_trace_without_requests(write, header: str) -> None:
    assert error_of(write("t.csv", header)) == "t.csv:1: no requests after the header"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AZURE + "2023-11-16 18:17:03.97,0,10\n", "t.csv:2: ContextTokens: must be at least 1, found 0"),
        (AZURE + "2023-11-16 18:17:03.97,5,0\n", "t.csv:2: GeneratedTokens: must be at least 1, found 0"),
        (AZURE + "2023-11-16 18:17:03.97,5\n", f"t.csv:2: expected 3 values ({AZURE.strip()}), found 2"),
        (AZURE + "18:17,5,6\n", "t.csv:2: TIMESTAMP: expected a time such as 2023-11-16 18:17:03.9799600, "),
        (NATIVE + "0,1,2\n0.5,-4,2\n", "t.csv:3: prompt_tokens: must be at least 1, found -4"),
        (NATIVE + "0,1,2\n0.5,4,0\n", "t.csv:3: output_tokens: must be at least 1, found 0"),
        (NATIVE + "\n0,1,2\n\n-1,4,1\n", "t.csv:5: arrival_s: must not be negative, found -1"),
        (NATIVE + "nan,4,1\n", "t.csv:2: arrival_s: expected a finite number, found nan"),
        (NATIVE + "0,1000000000,1\n", "t.csv:2: prompt_tokens: must be at most 100000000, found 1000000000"),
        (NATIVE + "0,1,\n", "t.csv:2: output_tokens: missing"),
        (NATIVE + "0,1,2\n0,1,2,3\n", "t.csv:3: expected 3 values (arrival_s,prompt_tokens,output_tokens), found 4"),
        (NATIVE + '0,1,"2\n0,1,2\n', "t.csv:2: not valid CSV: unexpected end of data"),
        (NATIVE + '0,1,"2"3\n', "t.csv:2: not valid CSV: ',' expected after '\"'"),
        ("arrival_s,promt_tokens,output_tokens\n", "t.csv:1: 'promt_tokens': unknown column; did you mean prompt_"),
        ("arrival_s,prompt_tokens\n0,1\n", "t.csv:1: output_tokens: this column is missing"),
        ("arrival_s,arrival_s,output_tokens\n", "t.csv:1: arrival_s: this column is there twice"),
        ("a;b\n", "t.csv:1: unknown header 'a;b'; choose the format with --trace-format: "),
    ],
)
def test_csv_mistakes_are_located(write, text: str, message: str) -> None:
    assert error_of(write("t.csv", text)).startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON: Expecting property name enclosed in double quotes (column 2)"),
        ("[1]", "expected a JSON object, found a list"),
        ("7", "expected a JSON object, found a number"),
        ("[" * 100_000, "not valid JSON: "),
        ('{"arrival_s": 0, "prompt_tokens": 5}', "output_tokens: missing"),
        ('{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": null}', "output_tokens: missing"),
        (
            '{"arrival_s": 0, "prompt_tokens": "5", "output_tokens": 1}',
            "prompt_tokens: expected a number, found the text '5'",
        ),
        ('{"arrival_s": 0, "prompt_tokens": true}', "prompt_tokens: expected a number, found true"),
        ('{"arrival_s": 0, "prompt_tokens": [1]}', "prompt_tokens: expected a number, found a list"),
        ('{"arrival_s": {}, "prompt_tokens": 5}', "arrival_s: expected a number, found an object"),
        ('{"arrival_s": NaN, "prompt_tokens": 5}', "arrival_s: expected a finite number, found NaN"),
        (
            '{"arrival_s": 0, "prompt_tokens": 5.0, "output_tokens": 1}',
            "prompt_tokens: expected a whole number, found '5.0'",
        ),
        (
            '{"arrival_s": 0, "promt_tokens": 5, "output_tokens": 1}',
            "'promt_tokens': unknown key; did you mean prompt_tokens",
        ),
        ('{"arrival_s": 0, "arrival_s": 0}', "'arrival_s': this key is there twice"),
        (ROW.strip().replace("}", ', "class": false}'), "class: expected text, found false"),
        (ROW.strip().replace("}", ', "id": "\\ud800"}'), "id: '\\ud800' is not Unicode text"),
    ],
)
def test_json_mistakes_are_located(write, line: str, message: str) -> None:
    assert error_of(write("t.jsonl", f"{ROW}\n{line}\n")).startswith(f"t.jsonl:3: {message}")


@pytest.mark.parametrize("text", [f"[{ROW.strip()}]\n", f"[\n{ROW}]\n"])
@pytest.mark.parametrize("name", ["auto", "native"])
def test_a_json_array_is_called_one(write, text: str, name: str) -> None:
    with pytest.raises(InputError, match=r"t\.json:1: a JSON array; write one object a line"):
        read_trace(write("t.json", text), name)


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ("id", "a", "id: 'a' is already on line 2"),
        ("id", "", "id: missing, though other requests have one"),
        ("prefix_id,prefix_tokens", "p,", "prefix_tokens: missing beside prefix_id"),
        ("prefix_id,prefix_tokens", ",3", "prefix_tokens: has no meaning without prefix_id"),
        ("prefix_id,prefix_tokens", "p,11", "prefix_tokens: must not be more than prompt_tokens"),
        ("max_tokens", "0", "max_tokens: must be at least 1, found 0"),
        ("priority", "high", "priority: expected a whole number, found 'high'"),
        ("deadline_s", "-1", "deadline_s: must not be negative, found -1"),
    ],
)
def test_mistakes_in_optional_columns_are_located(write, columns: str, row: str, message: str) -> None:
    first = {"id": "a", "prefix_id,prefix_tokens": "p,5"}.get(columns, "")
    text = f"{NATIVE.strip()},{columns}\n0,10,1,{first}\n1,10,1,{row}\n"
    assert error_of(write("t.csv", text)) == f"t.csv:3: {message}"


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["", "{", AZURE, NATIVE + "0,1,2\n", NATIVE.replace("\n", ",id\n"), ROW]),
    st.one_of(st.binary(max_size=60), st.text('0123456789.,-+eE"{}[]:\n\r natruefsl_', max_size=60).map(str.encode)),
    st.sampled_from(["auto", "azure", "native"]),
)
def test_any_bytes_are_read_or_refused_in_one_line(write, head: str, tail: bytes, name: str) -> None:
    try:
        table = read_trace(write("t.bin", head.encode() + tail), name)
    except InputError as error:
        said = str(error)
    else:
        assert table.prompt_tokens.min() >= 1
        return
    assert said.startswith("t.bin:")
    assert len(said.splitlines()) == 1


# --- the public traces --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rows"), [("code", 8819), ("conv", 19366)])
def test_the_azure_traces_are_read_whole(shared: Path, name: str, rows: int) -> None:
    table = read_trace(shared / "traces" / "azure" / f"AzureLLMInferenceTrace_{name}.csv")
    assert len(table) == rows
    assert (np.diff(table.arrival_ns) >= 0).all()
    assert table.arrival_ns[0] % 1000 == 0  # whole microseconds
