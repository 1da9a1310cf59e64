"""Completion of the command line in a shell, by argcomplete: an optional dependency, imported when a shell asks."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from simulator.cli.codes import EXIT_DONE, EXIT_INPUT
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.scenario.nodes import Node

SHELLS = ("bash", "zsh", "fish")


def print_script(arguments: argparse.Namespace) -> int:
    """Print what a shell must read for `servesim` to be completed.

    Raises:
        InputError: argcomplete is not installed.
    """
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        raise InputError("completion needs argcomplete: python -m pip install argcomplete") from None
    print(shellcode(["servesim"], shell=arguments.shell))
    return EXIT_DONE


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, which asks by environment variables, and end the program."""
    try:
        import argcomplete
    except ImportError:
        raise SystemExit(EXIT_INPUT) from None
    _attach(parser, _completers())
    argcomplete.autocomplete(parser, always_complete_options="long")


def _attach(parser: argparse.ArgumentParser, completers: dict[str, Callable[..., Any]]) -> None:
    """Give the actions of a parser and of its verbs the completers of what they read, if need be those of the verb."""
    verb = parser.prog.rpartition(" ")[2]
    for action in parser._actions:
        completer = completers.get(f"{verb} {action.dest}") or completers.get(action.dest)
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _attach(inner, completers)


def _completers() -> dict[str, Callable[..., Any]]:
    """By the name of what is read; each is called with the beginning of a word and the arguments so far."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    scenario_files, files, folders = FilesCompleter(("yaml", "yml")), FilesCompleter(), DirectoriesCompleter()
    return {
        "scenario": lambda prefix, **_: [*_scenarios(prefix), *scenario_files(prefix)],
        "scenarios": lambda prefix, **_: [*_scenarios(prefix), *scenario_files(prefix)],
        "trace": lambda prefix, **_: [*_traces(), *files(prefix)],
        "stats files": lambda prefix, **_: [*_traces(), *files(prefix)],
        "trace_format": lambda **_: _formats(),
        "gpu": lambda **_: _gpus(),
        "model": lambda **_: _models(),
        "set": lambda prefix, **_: list(_settings(prefix)),
        "validate set": lambda **_: _server_keys(),
        "calibrate set": lambda **_: _server_keys(),
        "out": folders,
        "steps": folders,
        "folders": folders,
    }


def _scenarios(prefix: str) -> list[str]:
    from simulator.common.shipped import scenario_names

    return [name for name in scenario_names() if name.startswith(prefix)]


def _traces() -> list[str]:
    from simulator.common.shipped import data_root

    return sorted(path.name for path in (data_root() / "traces").glob("*.csv*"))


def _formats() -> list[str]:
    from simulator.workload.formats import FORMATS

    return sorted(FORMATS)


def _gpus() -> list[str]:
    from cost_models import gpu_names

    return gpu_names()


def _models() -> list[str]:
    from cost_models import model_names

    return model_names()


def _server_keys() -> list[str]:
    from simulator.validation.bench.server import OPTIONS

    return [f"{name}=" for name in OPTIONS]


def _settings(prefix: str) -> Iterator[str]:
    """Keys of the scenario with a `=`; once there is one, the values that the key may have, where they are few."""
    from simulator.scenario.keys import keys_of, values_of
    from simulator.scenario.schema import Scenario

    key, found, _ = prefix.partition("=")
    if not found:
        yield from (f"{each}=" for each in keys_of(Scenario, _document(os.environ.get("COMP_LINE", ""))))
        return
    names = {"gpu": _gpus, "model": _models}.get(key.rpartition(".")[2])
    yield from (f"{key}={value}" for value in (names() if names else values_of(Scenario, key)))


def _document(line: str) -> Node:
    """The first scenario that a command line names: argparse keeps none for a line whose last option has no value."""
    from simulator.common.shipped import find_scenario
    from simulator.scenario.extends import read_extended
    from simulator.scenario.nodes import Node

    for word in line.split():
        with contextlib.suppress(InputError):
            return read_extended(find_scenario(word))
    return Node("", {})
