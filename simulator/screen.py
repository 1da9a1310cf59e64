"""The terminal: a console for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, NoReturn

from rich import box
from rich.console import Console
from rich.table import Table


class Screen(Console):
    """rich's console, but a closed pipe is the caller's affair; rich would end the program with exit code 1."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(file=stream, highlight=False)

    def on_broken_pipe(self) -> NoReturn:
        """Let the command line see what happened."""
        raise BrokenPipeError


def numbers_table(first: str, columns: Sequence[str], width: int = 17) -> Table:
    """A table with a name at most `width` wide in its first column, and numbers in the others."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False, show_edge=False)
    table.add_column(first, max_width=width, overflow="ellipsis", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table
