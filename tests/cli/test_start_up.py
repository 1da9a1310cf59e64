"""Start-up: commands import no heavy package that they do not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HEAVY = ("scipy", "pandas", "matplotlib", "joblib")


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["list", "gpus"],
        ["run", "quickstart", "--set", "workload.limit=20"],
        ["run", "quickstart", "--dry-run"],
        ["run", "designs/disaggregated", "--set", "workload.requests=50"],
        ["run", "quickstart", "--set", "workload.limit=20", "--out", "OUT"],
    ],
    ids=" ".join,
)
def test_no_heavy_package_is_imported(command: list[str], tmp_path: Path) -> None:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    code = (
        "import sys\nfrom simulator.cli import main\n"
        f"try:\n    code = main({words!r})\nexcept SystemExit as end:\n    code = end.code\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'exit code {code}, imported {loaded}' if code or loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
