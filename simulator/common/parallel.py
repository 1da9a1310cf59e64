"""Function calls side by side in worker processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

#: Whether this process is a worker, which starts no others.
_in_worker = False


def in_worker() -> bool:
    """Return whether this process is a worker of `in_processes`."""
    return _in_worker


def cores() -> int:
    """Return the number of processors that this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


def _work(function: Callable[..., T], task: tuple[Any, ...]) -> T:
    """Call a function in a worker process."""
    global _in_worker
    _in_worker = True
    return function(*task)


def in_processes(function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """Call `function` with the arguments of each task, and yield the results in the order of the tasks.

    `jobs` is the number of worker processes, -1 for one per core; with 1, and in a worker process, the calls are made
    in this process.
    """
    if jobs == 1 or _in_worker:
        for task in tasks:
            yield function(*task)
        return
    from joblib import Parallel, delayed

    with _sigint_blocked():
        # Without files for large arguments, which would be left behind after Ctrl-C.
        parallel = Parallel(n_jobs=jobs, return_as="generator", max_nbytes=None)
        results = parallel(delayed(_work)(function, task) for task in tasks)
    yield from results


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread and in the worker processes that it starts meanwhile.

    A worker inherits the mask for its whole life. Ctrl-C then reaches the main process alone, which ends the workers;
    otherwise each worker would print a traceback. A SIGINT that arrives meanwhile is delivered afterwards.
    """
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as joblib_resource_tracker

    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    for tracker in (resource_tracker, joblib_resource_tracker):  # their start unblocks SIGINT: they have to come first
        tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
