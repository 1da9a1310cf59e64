"""argparse with one-line errors that refer to the help, and help that ends with examples and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from simulator.cli.codes import EXIT_DONE, EXIT_INPUT, MEANINGS
from simulator.errors import did_you_mean


class Parser(argparse.ArgumentParser):
    """The parser of `servesim`, of a verb, or of an action of a verb.

    `examples` are pairs of a command line and its description; `failures` replaces descriptions of exit codes for this
    verb; `surplus` is a hint for superfluous positional arguments. A parser without a verb prints its help.
    """

    def __init__(
        self,
        *,
        examples: Sequence[tuple[str, str]] = (),
        failures: Mapping[int, str] | None = None,
        surplus: str = "",
        **keywords: Any,
    ) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=_epilog(examples, failures or {}),
            **keywords,
        )
        self.surplus = surplus
        for name in (None, "store"):
            self.register("action", name, _Once)
        self.set_defaults(verb=self._show_help)

    def _show_help(self, arguments: argparse.Namespace) -> int:
        self.print_help()
        return EXIT_DONE

    def error(self, message: str) -> NoReturn:
        """Print one line that refers to the help, and exit with the code of bad input."""
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EXIT_INPUT)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but report unknown arguments of a verb as an error of that verb."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._advice(unknown[0])}")
        return found, unknown

    def _advice(self, unknown: str) -> str:
        if not unknown.startswith("-"):
            return self.surplus
        option, known = unknown.partition("=")[0], list(self._option_string_actions)
        return "" if option in known else did_you_mean(option, known)  # a known option, after --

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices: Iterable[str] | None = action.choices
        if choices is not None and value not in choices:
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}{did_you_mean(str(value), choices)}")


class _Once(argparse.Action):
    """Store the value of an option that may be given once; a second one is an error, not a silent replacement."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        given = namespace.__dict__.setdefault("given", [])
        if option is not None and self.dest in given:
            raise argparse.ArgumentError(self, "is given twice")
        given.append(self.dest)
        setattr(namespace, self.dest, values)


def _epilog(examples: Sequence[tuple[str, str]], failures: Mapping[int, str]) -> str:
    shown = [f"  # {description}\n  {line}" for line, description in examples]
    codes = [f"  {code:<3}  {meaning}" for code, meaning in {**MEANINGS, **failures}.items() if meaning]
    return "\n".join([*(["examples:", *shown, ""] if shown else []), "exit codes:", *codes])
