"""Options that several verbs share, with one name, one meaning and one help text each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator.errors import InputError


def path_argument(text: str) -> Path:
    """Return the path of an option. Raises ArgumentTypeError for an empty one, which would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give the path of a file or folder")
    return Path(text)


def add_set(parser: argparse.ArgumentParser, key: str = "a key of the scenario") -> None:
    """Add `--set KEY=VALUE`, which may be repeated."""
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", type=_assignment, default=[], help=f"set {key}; may be repeated"
    )


def _assignment(text: str) -> str:
    if "=" not in text:
        example = "with a dotted key such as workload.limit=100"
        raise argparse.ArgumentTypeError(f"--set {text}: expected KEY=VALUE, {example}")
    return text


def add_trace(parser: argparse.ArgumentParser, whose: str) -> None:
    """Add `--trace` and `--trace-format`, which replace `whose` workload by a trace."""
    parser.add_argument("--trace", metavar="FILE", help=f"replay this trace instead of {whose} workload; - for stdin")
    parser.add_argument("--trace-format", metavar="F", help="the format of the trace (default: detected)")


def trace_format(arguments: argparse.Namespace) -> str | None:
    """Return the value of `--trace-format`. Raises InputError if `--trace` is missing."""
    if arguments.trace_format is not None and arguments.trace is None:
        raise InputError("--trace-format has no meaning without --trace; set workload.trace_format instead")
    name: str | None = arguments.trace_format
    return name


def out_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the value of `--out`. Raises InputError for `--force` without it."""
    if arguments.force and arguments.out is None:
        raise InputError("--force has no meaning without --out, whose results it replaces")
    folder: Path | None = arguments.out
    return folder


def named_files(arguments: argparse.Namespace) -> list[str]:
    """Return the scenarios and traces that the arguments name."""
    given = vars(arguments)
    lists = (given.get("scenarios"), given.get("files"), [given.get("scenario")], [given.get("trace")])
    return [str(name) for names in lists if names for name in names if name is not None]


def add_seed(parser: argparse.ArgumentParser, help_text: str = "the seed of all random streams") -> None:
    """Add `--seed N`."""
    parser.add_argument("--seed", metavar="N", help=help_text)


def seed_override(arguments: argparse.Namespace) -> list[str]:
    """Return `--seed` as an override. Raises InputError if it is not a seed."""
    text = arguments.seed
    if text is None:
        return []
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 2**63):
        raise InputError(f"--seed {text}: seed: expected an integer of at least 0 and below 2^63")
    return [f"seed={int(text)}"]


def add_seeds(parser: argparse.ArgumentParser, default: str | None, help_text: str) -> None:
    """Add `--seeds N`, the number of seeds to simulate."""
    parser.add_argument("--seeds", metavar="N", default=default, help=f"{help_text} (default: {default or 'one run'})")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add `--jobs N`, the number of processes."""
    parser.add_argument("--jobs", metavar="N", help="processes; -1 for all cores (default)")


def jobs_of(arguments: argparse.Namespace) -> int:
    """Return the value of `--jobs`. Raises InputError if it is not a number of processes."""
    return integer_option("-1" if arguments.jobs is None else arguments.jobs, "--jobs", -1)


def add_json(parser: argparse.ArgumentParser, help_text: str = "print one JSON object instead of tables") -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help=help_text)


def add_out(parser: argparse.ArgumentParser, contents: str) -> None:
    """Add `--out DIR` and `--force`, which allows replacing results of another scenario."""
    parser.add_argument("--out", metavar="DIR", type=path_argument, help=f"write {contents} to this folder")
    parser.add_argument("--force", action="store_true", help="allow --out to replace results of another scenario")


def add_quiet(parser: argparse.ArgumentParser, progress: bool = True) -> None:
    """Add `--quiet` and, for a verb that may take long, `--no-progress`."""
    if progress:
        parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print nothing but errors and the output of --json; show no progress bar",
    )


def show_progress(arguments: argparse.Namespace) -> bool:
    """Return whether to show a progress bar: on a terminal, unless an option disables it."""
    return sys.stderr.isatty() and not (arguments.no_progress or arguments.quiet)


def integer_option(text: str, name: str, least: int) -> int:
    """Return the integer in `text`, at least `least` and not 0. Raises InputError, which names the option `name`."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value == 0:
        raise InputError(f"{name}: expected a whole number of at least {max(least, 1)}, found {text!r}")
    return value
