"""The terminal: a console for tables."""

from __future__ import annotations

from typing import IO, NoReturn

from rich.console import Console


class Screen(Console):
    """rich's console, but a closed pipe is the caller's affair; rich would end the program with exit code 1."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(file=stream, highlight=False)

    def on_broken_pipe(self) -> NoReturn:
        """Let the command line see what happened."""
        raise BrokenPipeError
