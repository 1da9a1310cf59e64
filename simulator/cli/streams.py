"""Standard streams and signals for the command line."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from simulator.cli.codes import EXIT_TERMINATED

#: The most characters of a message.
_LONGEST = 2000


#: Modes in which the null device replaces closed streams. For a closed stdout it is read-only, so that output raises
#: OSError instead of being lost; messages for a closed stderr are discarded.
_CLOSED = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}


def prepare() -> None:
    """Open the null device instead of closed streams, and let stdout and stderr print names in any script.

    The null device takes the lowest free file descriptor, that of the closed stream, so that no file opened later gets
    it and receives the stream's output.
    """
    for name, flags in _CLOSED.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit while the context lasts, so that unfinished results are removed."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that was forked from this one
            os._exit(EXIT_TERMINATED)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def print_error(text: str) -> None:
    """Print one line on stderr, if that is open; the middle of a long text is left out."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    with contextlib.suppress(OSError, ValueError):
        print(f"servesim: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Discard what is left in the buffers of stdout and stderr, so that Python does not fail on it at exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
