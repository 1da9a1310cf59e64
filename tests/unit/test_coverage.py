"""The pure core (policies, memory, routing, network, speculation) is covered by its own unit tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

PACKAGES = ("scheduling", "memory", "routing", "network", "speculation")


def test_the_pure_core_is_covered_by_its_unit_tests(tmp_path: Path) -> None:
    """At least as far as `fail_under` in pyproject.toml says, branches included."""
    environment = os.environ | {"COVERAGE_FILE": str(tmp_path / "coverage")}
    folders = [f"tests/unit/{package}" for package in PACKAGES]
    pytest_ = ["run", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *folders]
    for arguments in (pytest_, ["report"]):
        command = [sys.executable, "-m", "coverage", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
