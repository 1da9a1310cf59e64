"""Completion of the command line in a shell by argcomplete, an optional dependency that is imported on request of a
shell.
"""

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
    """Print the script that a shell must source for completion.

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
    """Print completions for the shell, which asks for them by environment variables, and exit."""
    try:
        import argcomplete
    except ImportError:
        raise SystemExit(EXIT_INPUT) from None
    _attach(parser, _completers())
    argcomplete.autocomplete(parser, always_complete_options="long")


def _attach(parser: argparse.ArgumentParser, completers: dict[str, Callable[..., Any]]) -> None:
    """Set the completers of the actions of a parser and of its verbs, those specific to a verb first."""
    verb = parser.prog.rpartition(" ")[2]
    for action in parser._actions:
        completer = completers.get(f"{verb} {action.dest}") or completers.get(action.dest)
        if completer is not None:
            action.completer = completer  # type: ignore[attr-defined]
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _attach(inner, completers)


def _completers() -> dict[str, Callable[..., Any]]:
    """Return the completers by argument name; each is called with the prefix of a word and the arguments so far."""
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
    """Yield keys of the scenario with a `=`, or after a `=` the values of the key if they are few."""
    from simulator.scenario.keys import keys_of, values_of
    from simulator.scenario.schema import Scenario

    key, found, _ = prefix.partition("=")
    if not found:
        yield from (f"{each}=" for each in keys_of(Scenario, _document(os.environ.get("COMP_LINE", ""))))
        return
    names = {"gpu": _gpus, "model": _models}.get(key.rpartition(".")[2])
    yield from (f"{key}={value}" for value in (names() if names else values_of(Scenario, key)))


def _document(line: str) -> Node:
    """Return the first scenario on the command line. It is read from the line itself, since argparse keeps none if the
    last option has no value.
    """
    from simulator.common.shipped import find_scenario
    from simulator.scenario.extends import read_extended
    from simulator.scenario.nodes import Node

    for word in line.split():
        with contextlib.suppress(InputError):
            return read_extended(find_scenario(word))
    return Node("", {})
