"""Closed and full streams, narrow encodings and signals: no traceback, nothing half written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCENARIO = """\
name: {name}
model: llama-3.1-8b
workload: {{arrivals: {{process: poisson, rate: 4}}, requests: {requests}, prompt_tokens: 100, output_tokens: 20}}
deployment: {{pools: {{main: {{gpu: h100-sxm}}}}}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(name="name", requests=20))
    return path


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which `servesim` is the command; its exit code is that of the first of a pipeline."""
    line = f'servesim() {{ "{sys.executable}" -m simulator.cli "$@"; }}; {command}; exit ${{PIPESTATUS[0]}}'
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8")}
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env=known | {"PYTHONPATH": str(ROOT)} | environment,
        timeout=120,
    )


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_without_stderr(scenario: Path, tmp_path: Path, closed: str) -> None:
    done = shell(f"servesim run {scenario} --json --out {tmp_path / 'out'} {closed}")
    assert done.returncode == 0
    assert (tmp_path / "out" / "summary.json").is_file()
    assert done.stdout.startswith("{")
    assert shell(f"servesim run nowhere.yaml {closed}").stdout == ""
    assert shell(f"servesim run nowhere.yaml {closed}").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", ">&- 2>&-"])
def test_without_stdout_output_is_an_error(scenario: Path, tmp_path: Path, closed: str) -> None:
    done = shell(f"servesim run {scenario} --out {tmp_path / 'out'} {closed}")
    assert done.returncode == 2
    assert done.stderr == ("" if "2>&-" in closed else "servesim: output: Bad file descriptor\n")
    assert (tmp_path / "out" / "summary.json").is_file()
    assert shell(f"servesim run {scenario} --quiet --out {tmp_path / 'out'} {closed}").returncode == 0


@pytest.mark.parametrize("pipe", ["| head -1", "2>&1 | true", "| head -c 3"])
def test_a_reader_that_has_seen_enough(scenario: Path, pipe: str) -> None:
    done = shell(f"servesim run {scenario} {pipe}")
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_has_no_room(scenario: Path) -> None:
    done = shell(f"servesim run {scenario} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "servesim: output: No space left on device\n")


@pytest.mark.parametrize("name", ["żółw", "模型", "\U0001f422"])
def test_a_terminal_of_ascii(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(SCENARIO.format(name=name, requests=20), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = shell(f"servesim run '{path}' --out '{tmp_path / name}'", **ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert name.encode("ascii", "backslashreplace").decode() in done.stdout
    assert name in (tmp_path / name / "summary.json").read_text(encoding="utf-8")
    path.write_text(f"{name}: 3\n", encoding="utf-8")
    done = shell(f"servesim run '{path}'", **ascii_only)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_results_are_written(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Results are written slowly here, so that the signal comes meanwhile."""
    script = (
        "import sys, time; import numpy as np; from simulator.cli import main\n"
        "write = np.lib.format.write_array\n"
        "def slow(*args, **named):\n    write(*args, **named); print('writing', flush=True); time.sleep(0.1)\n"
        "np.lib.format.write_array = slow\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(name="name", requests=20))
    command = [sys.executable, "-c", script, "run", str(path), "--out", str(tmp_path / "out"), "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "writing\n"
        time.sleep(0.05)
        process.send_signal(number)
        if number == signal.SIGINT:  # the first one lets what is written become whole
            time.sleep(0.2)
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.yaml"]
