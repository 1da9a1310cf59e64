"""Was the load above capacity?

If so, the line of waiting requests grows for as long as requests arrive, and every latency percentile says how long the
run was, not how good the service is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import Ints, RunRecord, Status
from simulator.results.saturation import Load
from simulator.results.statistics import Distribution

#: Fewer requests than this cannot tell a growing line from a passing one.
_FEWEST = 100
#: The part of all requests that must have arrived since the line was empty for the last time.
_SHARE = 1 / 3
#: How much longer the line must be over the last quarter of those arrivals than over the first.
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Overload:
    """Since the line was last empty: requests that came and that were taken up a second, and the line at the end."""

    arrivals_per_s: float
    starts_per_s: float
    waiting: int


def overload(record: RunRecord) -> Overload | None:
    """The load on the service, if it was above capacity by more than chance explains; else None.

    The line has not been empty for a third of all requests or more, it is still growing, and the mean time between two
    starts out of it, less its 95% error (batch means), is longer than that between two arrivals. The recorded arrivals
    are taken as they are: what is uncertain is the speed of the service. All at once, in a closed loop, or behind a
    limit on the client's side, nothing grows.
    """
    requests = record.requests
    came = (requests.status != Status.NOT_ARRIVED) & (requests.status != Status.REJECTED)
    return _growing_line(requests.arrival_ns[came], requests.scheduled_ns[requests.scheduled_ns >= 0])


def client_overload(record: RunRecord) -> Overload | None:
    """What clients wanted to send, if it was more than their concurrency limit let in; else None. As `overload`."""
    requests = record.requests
    let_in = requests.status != Status.NOT_ARRIVED
    return _growing_line(requests.client_ns[requests.client_ns >= 0], requests.arrival_ns[let_in])


def backlog_grows(record: RunRecord) -> bool:
    """Whether more and more requests were at the service, waiting or running, as they came."""
    requests = record.requests
    came = (requests.status != Status.NOT_ARRIVED) & (requests.status != Status.REJECTED)
    arrivals, ends = np.sort(requests.arrival_ns[came]), np.sort(requests.finish_ns[requests.finish_ns >= 0])
    return _grows(np.arange(1, len(arrivals) + 1) - np.searchsorted(ends, arrivals, "right"))


def unstable(record: RunRecord) -> bool:
    """Return whether the queue grew because the load was above capacity, so that there was no steady state."""
    return overload(record) is not None


def above_capacity(record: RunRecord, load: Load | None) -> bool:
    """Return whether the load was above capacity by more than chance explains."""
    return unstable(record) or (load is not None and load.exceeds and backlog_grows(record))


def _growing_line(arrivals_ns: Ints, starts_ns: Ints) -> Overload | None:
    wanted, starts = (np.sort(np.asarray(times, np.int64)) for times in (arrivals_ns, starts_ns))
    if len(wanted) < _FEWEST or wanted[0] == wanted[-1]:
        return None
    line = np.searchsorted(wanted, starts, "right") - np.searchsorted(starts, starts, "right")
    empty = np.flatnonzero((line == 0) & (starts <= wanted[-1]))
    first = int(empty[-1]) + 1 if len(empty) else 0
    since = starts[first - 1] if first else wanted[0]
    arrivals = wanted[np.searchsorted(wanted, since, "right") :]
    if len(arrivals) < max(_FEWEST, _SHARE * len(wanted)):
        return None
    sent = np.arange(len(wanted) - len(arrivals), len(wanted)) + 1
    waiting = sent - np.searchsorted(starts, arrivals, "right")
    emptied = np.flatnonzero(line[first:] == 0)
    busy_starts = starts[first : first + int(emptied[0]) + 1] if len(emptied) else starts[first:]
    rate = len(arrivals) / float(arrivals[-1] - since)
    if not _grows(waiting) or not _slower(busy_starts - since, 1 / rate):
        return None
    until = max(arrivals[-1], busy_starts.max(initial=since))
    return Overload(rate * 1e9, len(busy_starts) / float(until - since) * 1e9, int(waiting[-1]))


def _grows(waiting: NDArray[np.integer]) -> bool:
    quarter = len(waiting) // 4
    return bool(waiting[-quarter:].mean() > _GROWTH * waiting[:quarter].mean())


def _slower(starts_ns: NDArray[np.int64], arrival_gap_ns: float) -> bool:
    """Whether the mean gap of the starts is longer for certain. Too few starts to tell, for so many arrivals, are."""
    interval = Distribution.of_series(np.diff(starts_ns, prepend=0)).mean_interval()
    return interval is None or interval[0] > arrival_gap_ns
