"""The installed wheel: packages, data, the command that finds them, and types for a user's type checker."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = """\
from pathlib import Path

import simulator
from simulator import Comparison, InputError, Results, Run, Scenario


def latencies(rates: list[float]) -> dict[float, float]:
    base: Scenario = simulator.load_scenario("quickstart", {"workload.limit": 20}, seed=1)
    found = {}
    for rate in rates:
        run: Run = simulator.run(base, {"workload.rate_scale": rate}, out=Path("out"), progress=False)
        found[rate] = float(run.summary["latency"]["ttft_ms"]["p99"])
    return found


def read(folder: Path) -> Results:
    try:
        return simulator.load_results(folder)
    except InputError as error:
        raise SystemExit(str(error)) from error


comparison: Comparison = simulator.compare(["quickstart", {"name": "mine"}], seeds=2)
names: list[str] = simulator.list_gpus()
version: str = simulator.__version__
"""
MISTAKES = {
    "simulator.run('quickstart', seed='one')": "arg-type",
    "simulator.run('quickstart', sed=1)": "call-arg",
    "simulator.rum('quickstart')": "attr-defined",
    "simulator.list_gpus().upper()": "attr-defined",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the contents of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("servesim-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_carries_its_data(site: Path, tmp_path: Path) -> None:
    for name in (
        "simulator/py.typed",
        "cost_models/py.typed",
        "simulator/_data/scenarios/quickstart.yaml",
        "simulator/_data/traces/azure_conv_sample.csv",
        "simulator/_data/traces/measured/open_loop_vllm.csv",
        "cost_models/models/llama-3.1-8b.yaml",
        "cost_models/hardware/h100-sxm.yaml",
        "simulator/speculation/tables/eagle3.yaml",
    ):
        assert (site / name).is_file(), name
    assert not (site / "tests").exists() and not (site / "docs").exists()
    # As installed: from another folder, with the wheel's own modules first.
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from simulator.cli import main; "
    code += "sys.exit(main(['run', 'quickstart', '--set', 'workload.limit=20', '--json']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"completed": 20' in done.stdout
    code = code.replace("['run', 'quickstart', '--set', 'workload.limit=20', '--json']", "['validate']")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "open_loop_vllm.csv" in done.stdout, done.stderr


def test_a_users_script_is_type_checked_against_what_is_installed(site: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", site)
    (tmp_path / "right.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text("\n".join(["import simulator", *MISTAKES]) + "\n")
    check = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*check, "--python-executable", str(python), "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(found) == len(MISTAKES), done.stdout + done.stderr
    for line, (number, code) in zip(found, enumerate(MISTAKES.values(), 2), strict=True):
        assert line.startswith(f"wrong.py:{number}: error:") and f"[{code}]" in line


def environment(folder: Path, site: Path) -> Path:
    """Return the interpreter of a virtual environment with only the wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (place,) = folder.glob("lib/python*/site-packages")
    for package in ("simulator", "cost_models"):
        (place / package).symlink_to(site / package)
    return folder / "bin" / "python"
