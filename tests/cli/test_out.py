"""`--out` replaces the results of the same scenario, and no others without `--force`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simulator
from simulator.cli import main

SCENARIO = """\
name: small
model: llama-3.1-8b
workload: {arrivals: {process: poisson, rate: 20}, requests: 10, prompt_tokens: 100, output_tokens: 5}
deployment: {pools: {main: {gpu: h100-sxm}}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("small", "copy", "other"):
        Path(f"{name}.yaml").write_text(SCENARIO.replace("small", "other" if name == "other" else "small"))
    return tmp_path


def run(*arguments: str) -> int:
    return main(["run", *arguments, "-q", "--out", "out"])


def kept() -> tuple[str, int]:
    results = simulator.load_results("out")
    return results.summary["scenario"], results.summary["requests"]["submitted"]


def test_results_of_the_same_scenario_are_replaced() -> None:
    assert run("small.yaml") == 0
    assert run("small.yaml", "--set", "workload.requests=7") == 0
    assert kept() == ("small", 7)
    assert json.loads(Path("out/summary.json").read_text())["file"] == "small.yaml"


@pytest.mark.parametrize("arguments", [["copy.yaml"], ["other.yaml"], ["small.yaml", "--set", "name=third"]])
def test_those_of_another_one_are_not(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("small.yaml") == 0
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("servesim: out: holds results of the scenario small (small.yaml); choose another")
    assert captured.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
    assert run(*arguments, "--force") == 0


def test_what_is_no_result_is_never_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("small.yaml") == 0
    Path("out/thesis.tex").write_text("years of work")
    assert run("small.yaml", "--force") == 2
    assert "holds thesis.tex, which is not a result" in capsys.readouterr().err
    assert Path("out/thesis.tex").read_text() == "years of work"


def test_results_of_an_older_version_can_be_replaced() -> None:
    assert run("small.yaml") == 0
    summary = json.loads(Path("out/summary.json").read_text())
    del summary["file"]
    Path("out/summary.json").write_text(json.dumps(summary | {"schema_version": 1}))
    assert run("small.yaml") == 0
    assert kept() == ("small", 10)


def test_force_is_for_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml", "--force"]) == 2
    assert "--force has no meaning without --out" in capsys.readouterr().err


def test_a_comparison_replaces_one_of_the_same_designs(capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["compare", "--seeds", "1", "--jobs", "1", "-q", "--out", "both"]
    assert main([*compare, "small.yaml", "other.yaml"]) == 0
    assert main([*compare, "other.yaml", "small.yaml"]) == 0
    Path("third.yaml").write_text(SCENARIO.replace("small", "third"))
    assert main([*compare, "small.yaml", "third.yaml"]) == 2
    assert "servesim: both: holds a comparison of other, small; choose another folder" in capsys.readouterr().err
    assert main([*compare, "small.yaml", "third.yaml", "--force"]) == 0
    assert sorted(json.loads(Path("both/compare.json").read_text())["designs"]) == ["small", "third"]
    assert main([*compare, "copy.yaml", "third.yaml"]) == 2
    assert "both/small: holds results of the scenario small (small.yaml)" in capsys.readouterr().err


def test_from_python() -> None:
    simulator.run("small.yaml", out="out")
    with pytest.raises(simulator.InputError, match="holds results of the scenario small"):
        simulator.run("other.yaml", out="out")
    simulator.run("other.yaml", out="out", force=True)
    assert kept() == ("other", 10)
