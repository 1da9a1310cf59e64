"""What is installed: the packages, the data, and the command that finds them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.conftest import ROOT


def test_the_wheel_carries_its_data(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("servesim-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    for name in (
        "simulator/py.typed",
        "cost_models/py.typed",
        "simulator/_data/scenarios/quickstart.yaml",
        "simulator/_data/traces/azure_conv_sample.csv",
        "cost_models/models/llama-3.1-8b.yaml",
        "cost_models/hardware/h100-sxm.yaml",
        "simulator/speculation/tables/eagle3.yaml",
    ):
        assert name in names
    assert not any(name.startswith(("tests/", "docs/")) for name in names)
    # As installed: from another folder, with the wheel's own modules first.
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from simulator.cli import main; "
    code += "sys.exit(main(['run', 'quickstart', '--set', 'workload.limit=20', '--json']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"completed": 20' in done.stdout
