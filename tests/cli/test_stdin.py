"""`-`: a scenario or a trace from standard input."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path

import pytest
from joblib.externals.loky import get_reusable_executor

from simulator.cli import main

SCENARIO = """\
name: small
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: 20}
  requests: 40
  prompt_tokens: 100
  output_tokens: 20
deployment:
  pools:
    main: {gpu: h100-sxm}
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,100,3\n0.5,200,4\n1,10,5\n"


def given(monkeypatch: pytest.MonkeyPatch, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    return file


def test_a_scenario(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert main(["run", str(path), "--json"]) == 0
    from_file = capsys.readouterr().out
    for ends in (SCENARIO, SCENARIO.replace("\n", "\r\n"), "\ufeff" + SCENARIO):
        given(monkeypatch, ends)
        assert main(["run", "-", "--json"]) == 0
        assert capsys.readouterr().out == from_file
    assert "SERVESIM_STDIN" not in os.environ


def test_a_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path) -> None:
    for content in (TRACE, TRACE.replace("\n", "\r\n"), gzip.compress(TRACE.encode())):
        given(monkeypatch, content)
        assert main(["run", str(path), "--trace", "-", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["requests"]["completed"] == 3
    given(monkeypatch, TRACE)
    assert main(["trace", "stats", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["<stdin>"]["requests"] == 3


def test_a_trace_that_several_processes_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    other = path.parent / "two.yaml"
    other.write_text(
        SCENARIO.replace("name: small", "name: two").replace("gpu: h100-sxm", "gpu: h100-sxm, replicas: 2")
    )
    given(monkeypatch, TRACE)
    get_reusable_executor().shutdown()  # processes of an earlier test do not know of this one's standard input
    assert main(["compare", str(path), str(other), "--trace", "-", "--jobs", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["designs"]) == 2


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        (SCENARIO.replace("gpu:", "gup:"), ["-"], "servesim: <stdin>:10:12: deployment.pools.main.gup: unknown key"),
        (SCENARIO.replace("name: small", "name: [small"), ["-"], "servesim: <stdin>:"),
        (TRACE.replace("200", "x"), ["{path}", "--trace", "-"], "servesim: <stdin>:3: prompt_tokens"),
        ("", ["{path}", "--trace", "-"], "servesim: <stdin>: is empty"),
        ("", ["-"], "servesim: <stdin>:1:1: expected a mapping"),
        (b"\xff\xfe", ["-"], "servesim: <stdin>:1: not UTF-8 text"),
        (SCENARIO, ["-", "--trace", "-"], "servesim: -: stands for standard input, which can be read only once"),
    ],
)
def test_mistakes_name_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: Path,
    content: str | bytes,
    arguments: list[str],
    expected: str,
) -> None:
    given(monkeypatch, content)
    assert main(["run", *(argument.format(path=path) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_standard_input_that_is_closed_is_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["run", "-"]) == 2
    assert capsys.readouterr().err.startswith("servesim: <stdin>:1:1: expected a mapping")


def test_a_file_of_that_name_is_a_file_where_nothing_stands_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    path.rename("-")
    assert main(["run", "./-", "-q"]) == 0
