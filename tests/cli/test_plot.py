"""`servesim plot`: the figures of results directories of a run, of seeds and of a comparison."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from simulator.cli import main
from tests.cli.test_out import SCENARIO


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("small", "other"):
        Path(f"{name}.yaml").write_text(SCENARIO.replace("small", name))
    return tmp_path


def pictures(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


def test_a_run_prints_the_command_that_draws_its_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml", "--out", "an out"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "results in an out; figures: servesim plot 'an out'"
    assert pictures(folder) == []
    assert main(shlex.split(last.partition("servesim ")[2])) == 0
    assert capsys.readouterr().out == "an out/latency.png\nan out/load.png\n"
    assert pictures(folder) == ["an out/latency.png", "an out/load.png"]
    assert main(["run", "small.yaml", "-q", "--out", "an out", "--set", "workload.requests=7"]) == 0
    assert pictures(folder) == []  # they were of other results


def test_several_directories_are_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "small.yaml", "--seeds", "2", "--jobs", "1", "--out", "runs"]) == 0
    assert capsys.readouterr().out.endswith("results in runs; figures: servesim plot runs/seed-*\n")
    compare = ["compare", "small.yaml", "other.yaml", "--seeds", "1", "--jobs", "1", "--out", "both"]
    assert main(compare) == 0
    assert capsys.readouterr().out.endswith("results in both; figures of a design: servesim plot both/DESIGN\n")
    assert pictures(folder) == ["both/attribution.png", "both/latency.png"]
    assert main(["plot", "-q", "runs/seed-0", "runs/seed-1", "both/small"]) == 0
    assert capsys.readouterr().out == ""
    assert len(pictures(folder)) == 8
    assert main(compare) == 0  # folders with figures may be replaced
    assert main(["run", "small.yaml", "--seeds", "2", "--jobs", "1", "-q", "--out", "runs"]) == 0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere", "no such results directory"),
        ("empty", "not a results directory (no summary.json)"),
        ("small.yaml", "no such results directory"),
    ],
)
def test_other_folders_are_refused(name: str, problem: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    assert main(["plot", name]) == 2
    assert capsys.readouterr().err == f"servesim: {name}: {problem}\n"
    assert pictures(folder) == []
