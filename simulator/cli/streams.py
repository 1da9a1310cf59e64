"""Standard streams and signals as the command line needs them, whatever it was started with."""

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

#: Characters of a message.
_LONGEST = 2000


def prepare() -> None:
    """Give closed streams a place to go to, so that no file is opened in their stead, and let any name be printed."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the one that is closed: nothing written there can land in a file.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def termination_ends_in_order() -> Iterator[None]:
    """Let SIGTERM end the program as an exception does, so that unfinished results are removed, while this lasts."""
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


def complain(text: str) -> None:
    """Print one line on stderr, if that is open; the middle of an overlong text is left out."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    with contextlib.suppress(OSError, ValueError):
        print(f"servesim: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)


def mute() -> None:
    """Send what is left in the buffers of stdout and stderr nowhere, so that Python does not fail on it at exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
