"""The table of `servesim trace stats`, with distinct names of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.study.traces import print_trace_statistics, trace_statistics_of

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,10,1\n1,10,1\n"


def heading(files: list[Path], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the names of the columns, joined if they have several lines."""
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TRACE)
    print_trace_statistics({str(file): trace_statistics_of(str(file)) for file in files})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [[cell.strip() for cell in line.split("┃")[2:-1]] for line in lines if line.startswith("┃")]
    return ["".join(parts) for parts in zip(*rows, strict=True)]


def test_columns_are_named_after_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv", "b.csv", "[red].csv"]
    assert heading([tmp_path / ("folder" * 9) / name for name in names], capsys) == names


def test_files_of_the_same_name_have_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "monday" / "trace.csv", tmp_path / "tuesday" / "trace.csv"]
    assert heading(files, capsys) == [str(file) for file in files]
