"""Whole commands, and the CPU time and memory that they take."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

_TEN_REQUESTS = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},100,10\n" for i in range(10))
_MB = 1024  # KiB, in which the system counts


@dataclass(frozen=True, slots=True)
class Command:
    """The arguments of the Python interpreter, and the folder in which it runs.

    The arguments TEN and OUT are replaced by a trace of ten requests, and by a results directory that does not exist
    yet.
    """

    arguments: tuple[str, ...]
    folder: Path = ROOT


@dataclass(frozen=True, slots=True)
class Usage:
    """User and system time of a process and of its children, and the peak resident memory of the largest of them."""

    cpu_s: float
    peak_mb: float


class CommandError(Exception):
    """A command that failed; the text is the last line that it printed on stderr."""


def run_of(scenario: str, *options: str) -> Command:
    """Return the command `servesim run SCENARIO OPTIONS`; an option KEY=VALUE is short for `--set KEY=VALUE`."""
    words = [word for option in options for word in (("--set", option) if "=" in option else (option,))]
    return Command(("-m", "simulator.cli", "run", scenario, *words))


def usage_of(command: Command) -> Usage:
    """Run a command to its end.

    Raises:
        CommandError: its exit code is not 0.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        (Path(folder) / "ten.csv").write_text(_TEN_REQUESTS)
        places = {"TEN": f"{folder}/ten.csv", "OUT": f"{folder}/out"}
        words = [sys.executable, *(places.get(word, word) for word in command.arguments)]
        process = subprocess.Popen(
            words, cwd=command.folder, env=_environment(), stdout=subprocess.DEVNULL, stderr=errors
        )
        try:
            _, status, spent = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").split("\n")
            raise CommandError(next((line for line in reversed(lines) if line), f"exit code {process.returncode}"))
    return Usage(spent.ru_utime + spent.ru_stime, spent.ru_maxrss / _MB)


def usages_in_turn(commands: Sequence[Command], runs: int) -> list[list[Usage]]:
    """Run commands in turn, each `runs` times, and return the usages of each; every other round is in reverse order.

    Raises:
        CommandError: a command fails.
    """
    usages: list[list[Usage]] = [[] for _ in commands]
    for number in range(runs):
        turn = list(enumerate(commands))
        for place, command in turn[:: -1 if number % 2 else 1]:
            usages[place].append(usage_of(command))
    return usages


def cache_byte_code(folder: Path) -> None:
    """Compile the simulator in `folder`, and its imports at the start, so that no measured command has to."""
    for package in ("simulator", "cost_models"):
        compileall.compile_dir(folder / package, quiet=2)
    usage_of(Command(("-c", "import numpy, simpy, yaml"), folder))


def _environment() -> dict[str, str]:
    """Return the environment of commands: that of this process, with byte code cached."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
