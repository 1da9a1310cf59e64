"""Standard input instead of a file: `-` on the command line, `<stdin>` in messages.

Standard input can be read once, but files are read several times, also by the other processes of a comparison. So it is
copied to a temporary file, whose path an environment variable passes on to these processes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.errors import InputError

#: Name of standard input on the command line and as a path.
NAME = "-"
_SHOWN = "<stdin>"
_COPY = "SERVESIM_STDIN"


@contextlib.contextmanager
def stdin_as_file(names: Sequence[str | None]) -> Iterator[None]:
    """Let the file `-` stand for standard input inside the `with` block, if it is among `names`.

    Raises:
        InputError: it is among them twice.
    """
    if NAME not in names:
        yield
        return
    if names.count(NAME) > 1:
        raise InputError("-: stands for standard input, which can be read only once; give the other input as a file")
    import shutil
    import tempfile

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
    """Return the file to read for `path`, and its name in messages."""
    if is_stdin(path):
        return Path(os.environ[_COPY]), _SHOWN
    return Path(path), str(path)


def is_stdin(path: str | Path) -> bool:
    """Return whether `path` stands for standard input now."""
    return str(path) == NAME and _COPY in os.environ
