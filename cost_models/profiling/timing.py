"""The time of one call of a kernel with a cold cache: the median of a few repeats, L2 flushed before each."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple, Protocol

#: Untimed calls before the first timed one: libraries choose algorithms and load code then.
WARM_UPS = 2
#: Repeats: as many as fit into a few milliseconds, within these limits.
FEWEST, MOST = 3, 9
_ENOUGH_US = 20_000.0
#: Flushes queued before a repeat, at most, to keep the GPU busy while the host launches the kernel.
_MOST_FLUSHES = 16


class KernelError(RuntimeError):
    """A kernel that cannot be had, or timed, for a shape. Its text is one line, fit for a user."""


class Sample(NamedTuple):
    """One timed call: microseconds on the GPU, and whether the GPU had to wait for the host to launch it."""

    us: float
    late: bool


class Timer(Protocol):
    """Measures kernels. Of several processes that measure together, all get the same answers."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def flush(self) -> None:
        """Evict what the L2 cache holds. May return before that is done, as long as a later `time` comes after it."""
        ...

    def time(self, call: Callable[[], object]) -> Sample:
        """Run `call` once, and wait for it."""
        ...


def measure(call: Callable[[], object], timer: Timer) -> float:
    """Microseconds of one call: the median of 3 to 9 repeats, fewer the longer they take, after two untimed calls.

    A repeat for which the GPU waited for the host says how fast the host is. It is not counted, and from then on twice
    the flushes are queued before each repeat. Raises KernelError if that does not help.
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
