"""Progress bars of a run (simulated time and requests done) and of many runs. On stderr, and only on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

#: Whether long work shows a bar of its own if none is passed in.
_SHOWN: ContextVar[bool] = ContextVar("bars are shown", default=False)

Report = Callable[[int, int], None]

_REFRESH_S = 0.1


@contextlib.contextmanager
def bars(shown: bool) -> Iterator[None]:
    """Show bars for the runs of a study inside the `with` block, if `shown`."""
    before = _SHOWN.set(shown)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def bars_are_shown() -> bool:
    """Return whether the enclosing `bars` block shows bars."""
    return _SHOWN.get()


@contextlib.contextmanager
def runs_bar(runs: int, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar of whole runs; call the yielded function with the number of finished ones."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compare", total=runs)
        yield lambda done: bar.update(task, completed=done)


@contextlib.contextmanager
def progress_bar(requests: int, shown: bool) -> Iterator[Report | None]:
    """Show a bar of one run; call the yielded function with (simulated ns, finished requests)."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[simulated]:>12} simulated"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("run", total=requests, simulated="0.0 s")
        next_refresh = 0.0

        def report(now_ns: int, done: int) -> None:
            nonlocal next_refresh
            now = time.monotonic()  # for the screen only; nothing simulated depends on it
            if now >= next_refresh:
                next_refresh = now + _REFRESH_S
                bar.update(task, completed=done, simulated=f"{now_ns / 1e9:,.1f} s", refresh=True)

        yield report
