"""Damaged inputs of every kind: one line that says where the mistake is, and exit code 2; never a traceback or a hang.

The damages are random, from fixed seeds (`damage.py`): other types, values out of range, nesting, truncation, bytes
that are no text, lines that are missing or there twice.
"""

from __future__ import annotations

import random
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from simulator import load_results, run
from simulator.cli import main
from simulator.errors import InputError
from tests.cli.damage import KINDS, SCENARIO, Kind, damaged, gpu_kind

_INPUTS = 20
#: Time limit of one input in seconds, to detect a hang.
_PATIENCE = 60


@pytest.fixture(autouse=True)
def _strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn numeric overflows and hangs into errors."""

    def hangs(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the command hangs on the input")

    monkeypatch.setenv("SERVESIM_HOME", str(tmp_path / "home"))
    before = signal.signal(signal.SIGALRM, hangs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _check(victim: Path, command: list[str], right: tuple[int, ...], capsys: pytest.CaptureFixture[str]) -> int:
    signal.alarm(_PATIENCE)
    code = main(command)
    errors = capsys.readouterr().err
    assert code in right, errors
    if code == 2:
        assert len(errors.splitlines()) == 1, errors
        assert len(errors) < 6000, errors  # a path may be as long
        key = any(f"{name}." in errors or f"{name}: " in errors for name in ("deployment", "workload", "model"))
        assert victim.name in errors or key, errors
    return code


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _damage(name, KINDS[name], tmp_path, capsys)


def test_damaged_files_of_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _damage("gpu", Kind(lambda folder: gpu_kind(folder / "home")), tmp_path, capsys)


def _damage(name: str, kind: Kind, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim, command = kind.make(folder)
    valid = victim.read_bytes()
    assert _check(victim, command, (0, *kind.codes), capsys) != 2
    refused = 0
    for number in range(_INPUTS):
        victim.write_bytes(damaged(valid, random.Random(f"{name} {number}")))
        refused += _check(victim, command, (0, 2, *kind.codes), capsys) == 2
    assert refused > _INPUTS // 4  # they are damaged, and it is seen


def test_damaged_results(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    run(path).save(tmp_path / "out")
    refused = 0
    for file in sorted((tmp_path / "out").glob("*.[nj][ps]*")):
        valid = file.read_bytes()
        for number in range(6):
            file.write_bytes(damaged(valid, random.Random(f"{file.name} {number}")))
            message = _refusal(tmp_path / "out")
            refused += message is not None
            assert message is None or (len(message.splitlines()) == 1 and str(tmp_path / "out") in message)
        file.write_bytes(valid)
    load_results(tmp_path / "out")
    assert refused > 20


def _refusal(folder: Path) -> str | None:
    """Return the error about damaged results; None if they can be read."""
    try:
        load_results(folder)
    except InputError as error:
        return str(error)
    return None
