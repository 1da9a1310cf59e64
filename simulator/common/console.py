"""The terminal: a console for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, NoReturn

from rich import box
from rich.console import Console
from rich.table import Table

#: Least number of columns of output that does not go to a terminal.
_NARROWEST = 80


class Screen(Console):
    """Console of rich that leaves a closed pipe to the caller; rich would end the program with exit code 1.

    `width` is the number of columns where the output does not go to a terminal: a small COLUMNS would cut words.
    """

    def __init__(self, stream: IO[str] | None = None, width: int | None = None) -> None:
        super().__init__(file=stream, highlight=False, emoji=False)  # a name such as :100: is printed as it is
        if not self.is_terminal:
            self.width = max(self.width, _NARROWEST) if width is None else width

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError, which the command line handles."""
        raise BrokenPipeError


def numbers_table(first: str, columns: Sequence[str], width: int = 17) -> Table:
    """Return a table with a name at most `width` wide in its first column, and numbers in the others."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False, show_edge=False)
    table.add_column(first, max_width=width, overflow="ellipsis", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def short(value: float) -> str:
    """Return a value with four significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
