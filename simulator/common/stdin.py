"""Standard input in the place of a file: `-` on the command line, `<stdin>` in messages.

It can be read once, and files are read several times, a trace by the processes of a comparison, too. So it is copied to
a temporary file, of which those processes hear by an environment variable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.errors import InputError

#: How it is written on the command line, and the path that stands for it from there on.
NAME = "-"
_SHOWN = "<stdin>"
_COPY = "SERVESIM_STDIN"


@contextlib.contextmanager
def standing_for(names: Sequence[str | None]) -> Iterator[None]:
    """Let the file `-` be standard input while this lasts, if it is among `names`.

    Raises:
        InputError: it is there twice.
    """
    if NAME not in names:
        yield
        return
    if names.count(NAME) > 1:
        raise InputError("-: stands for standard input, which can be read once; give the other one as a file")
    with tempfile.TemporaryDirectory(prefix="servesim-") as folder:
        copy = Path(folder) / "stdin"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        os.environ[_COPY] = str(copy)
        try:
            yield
        finally:
            del os.environ[_COPY]


def located(path: str | Path) -> tuple[Path, str]:
    """The file to read for `path`, and how messages name it."""
    if is_read(path):
        return Path(os.environ[_COPY]), _SHOWN
    return Path(path), str(path)


def is_read(path: str | Path) -> bool:
    """Whether `path` stands for standard input now."""
    return str(path) == NAME and _COPY in os.environ
