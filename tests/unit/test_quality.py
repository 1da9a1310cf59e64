"""The project's own checks: style and types, and that the gate runs the commands of the README."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]], ids=" ".join
)
def test_style_and_types(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    readme, gate = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    command = readme.split("## Tests")[1].split("```")[1].strip()
    assert command.startswith("python -m pip install -e")
    assert command in gate.splitlines()
