"""Completion in a shell: what argcomplete answers, and the scripts that shells read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.cli import main
from simulator.scenario.keys import keys_of, values_of
from simulator.scenario.nodes import Node, read_file
from simulator.scenario.schema import Scenario
from tests.conftest import ROOT

pytest.importorskip("argcomplete", reason="completion is an optional extra")


def completions(line: str, folder: Path) -> list[str]:
    """Return the completions of bash for the last word of the line, from its last `=` on."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answer"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run(
        [sys.executable, "-m", "simulator.cli"], env=environment, cwd=folder, capture_output=True, check=True
    )
    return (folder / "answer").read_text().split("\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("servesim va", ["validate"]),
        ("servesim run --dr", ["--dry-run"]),
        ("servesim list sc", ["schedulers", "scenarios"]),
        ("servesim run quick", ["quickstart"]),
        ("servesim compare quickstart designs/code_edits_", ["designs/code_edits_ngram"]),
        ("servesim run min", ["mine.yaml"]),
        ("servesim run mine.yaml --set deployment.pools.ch", None),
        ("servesim run mine.yaml --set deployment.pools.second.repl", ["deployment.pools.second.replicas="]),
        ("servesim run mine.yaml --set deployment.pools.second.gpu=l", ["l40s"]),
        ("servesim run mine.yaml --set router.policy=least_", ["least_requests", "least_tokens", "least_waiting"]),
        ("servesim run mine.yaml --set run.checks=t", ["true"]),
        ("servesim trace stats azure_conv", ["azure_conv_sample.csv"]),
        ("servesim validate x.json --gpu h200", ["h200-sxm"]),
        ("servesim completion z", ["zsh"]),
    ],
)
def test_a_word_is_completed(line: str, expected: list[str] | None, tmp_path: Path) -> None:
    scenario = (ROOT / "scenarios" / "quickstart.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(scenario.replace("  pools:\n    chat:", "  pools:\n    second:"))
    assert completions(line, tmp_path) == (expected or [""])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "servesim" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_without_argcomplete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete.shell_integration", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "servesim: completion needs argcomplete: python -m pip install argcomplete\n"


def test_every_key_that_is_offered_is_one() -> None:
    document = read_file(ROOT / "scenarios" / "quickstart.yaml")
    keys = keys_of(Scenario, document)
    assert {"name", "workload.limit", "deployment.pools.chat.scheduler.max_num_seqs"} <= set(keys)
    assert not any("NAME" in key for key in keys)
    assert not any(key.startswith("deployment.pools.") for key in keys_of(Scenario, Node("", {})))


def test_values_of_a_choice() -> None:
    assert values_of(Scenario, "run.engine") == ["auto", "lazy", "explicit"]
    assert values_of(Scenario, "workload.arrivals.process")[:2] == ["poisson", "gamma"]
    assert values_of(Scenario, "deployment.pools.x.scheduler.async_scheduling") == ["true", "false"]
    assert values_of(Scenario, "workload.limit") == values_of(Scenario, "no.such.key") == []
