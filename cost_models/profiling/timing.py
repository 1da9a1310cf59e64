"""Time of one call of a kernel with a cold cache: the median of a few repeats, with L2 flushed before each."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple, Protocol

#: Untimed calls before the first timed one, in which libraries choose algorithms and load code.
WARM_UPS = 2
#: Repeats: as many as fit into a few milliseconds, within these limits.
FEWEST, MOST = 3, 9
_ENOUGH_US = 20_000.0
#: Most flushes queued before a repeat, to keep the GPU busy while the host launches the kernel.
_MOST_FLUSHES = 16


class KernelError(RuntimeError):
    """A shape without a kernel, or whose kernel cannot be timed. Its text is one line for the user."""


class Sample(NamedTuple):
    """One timed call: microseconds on the GPU, and whether the GPU had to wait for the host to launch it."""

    us: float
    late: bool


class Timer(Protocol):
    """A timer of kernels. If several processes measure together, all get the same results."""

    def now(self) -> float:
        """Return seconds since some fixed time."""
        ...

    def flush(self) -> None:
        """Evict the contents of the L2 cache. It may return earlier, if a later `time` waits for the end."""
        ...

    def time(self, call: Callable[[], object]) -> Sample:
        """Run `call` once, and wait for it."""
        ...


def measure(call: Callable[[], object], timer: Timer) -> float:
    """Return the microseconds of one call: the median of 3 to 9 repeats, fewer for longer calls, after two untimed
    calls.

    If the GPU waited for the host in a repeat, its time is that of the host. The repeat is then not counted, and twice
    as many flushes are queued before later repeats. Raises KernelError if that does not help.
    """
    for _ in range(WARM_UPS):
        call()
    samples: list[float] = []
    flushes = 1
    while len(samples) < FEWEST or (len(samples) < MOST and sum(samples) < _ENOUGH_US):
        for _ in range(flushes):
            timer.flush()
        sample = timer.time(call)
        if not sample.late:
            samples.append(sample.us)
        elif flushes < _MOST_FLUSHES:
            flushes *= 2
        else:
            raise KernelError("the host launches it more slowly than the GPU runs it")
    return median(samples)
