"""Detection of a load above capacity.

Above capacity, the queue grows for as long as requests arrive, and latency percentiles depend on the length of the run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import Ints, Status
from simulator.results.record import RunRecord
from simulator.results.saturation import Load
from simulator.results.statistics import Distribution

#: The fewest requests that can show whether a queue grows.
_FEWEST = 100
#: The least share of all requests that arrived since the queue was last empty.
_SHARE = 1 / 3
#: The least ratio of the queue's length over the last quarter of those arrivals to that over the first.
_GROWTH = 1.5


class Overload(NamedTuple):
    """Rates since the queue was last empty, of arrivals and of starts of service, and the queue's length at the end."""

    arrivals_per_s: float
    starts_per_s: float
    waiting: int


def overload(record: RunRecord) -> Overload | None:
    """Return the overload of the service if the load was above capacity by more than chance explains; else None.

    There is overload if the queue has not been empty for a third of all requests or more, is still growing, and the
    mean time between two starts of service, less its 95% error (batch means), is longer than that between two arrivals.
    The recorded arrivals count as exact, so that only the speed of the service is uncertain. There is none if all
    requests arrive at once, in a closed loop, or behind a limit of concurrency, since the queue does not grow.
    """
    requests = record.requests
    arrived = (requests.status != Status.NOT_ARRIVED) & (requests.status != Status.REJECTED)
    return _growing_queue(requests.arrival_ns[arrived], requests.scheduled_ns[requests.scheduled_ns >= 0])


def client_overload(record: RunRecord) -> Overload | None:
    """Return the overload of a client-side limit of concurrency, as `overload` does for the service; else None."""
    requests = record.requests
    admitted = requests.status != Status.NOT_ARRIVED
    return _growing_queue(requests.client_ns[requests.client_ns >= 0], requests.arrival_ns[admitted])


def backlog_grows(record: RunRecord) -> bool:
    """Return whether the number of requests in the system grew from arrival to arrival."""
    requests = record.requests
    arrived = (requests.status != Status.NOT_ARRIVED) & (requests.status != Status.REJECTED)
    arrivals, ends = np.sort(requests.arrival_ns[arrived]), np.sort(requests.finish_ns[requests.finish_ns >= 0])
    return _is_growing(np.arange(1, len(arrivals) + 1) - np.searchsorted(ends, arrivals, "right"))


def unstable(record: RunRecord) -> bool:
    """Return whether the queue grew because the load was above capacity, so that there was no steady state."""
    return overload(record) is not None


def above_capacity(record: RunRecord, load: Load | None) -> bool:
    """Return whether the load was above capacity by more than chance explains."""
    return unstable(record) or (load is not None and load.exceeds and backlog_grows(record))


def _growing_queue(arrivals_ns: Ints, starts_ns: Ints) -> Overload | None:
    wanted, starts = (np.sort(np.asarray(times, np.int64)) for times in (arrivals_ns, starts_ns))
    if len(wanted) < _FEWEST or wanted[0] == wanted[-1]:
        return None
    queue = np.searchsorted(wanted, starts, "right") - np.searchsorted(starts, starts, "right")
    empty = np.flatnonzero((queue == 0) & (starts <= wanted[-1]))
    first = int(empty[-1]) + 1 if len(empty) else 0
    since = starts[first - 1] if first else wanted[0]
    arrivals = wanted[np.searchsorted(wanted, since, "right") :]
    if len(arrivals) < max(_FEWEST, _SHARE * len(wanted)):
        return None
    sent = np.arange(len(wanted) - len(arrivals), len(wanted)) + 1
    waiting = sent - np.searchsorted(starts, arrivals, "right")
    emptied = np.flatnonzero(queue[first:] == 0)
    busy_starts = starts[first : first + int(emptied[0]) + 1] if len(emptied) else starts[first:]
    rate = len(arrivals) / float(arrivals[-1] - since)
    if not _is_growing(waiting) or not _is_slower(busy_starts - since, 1 / rate):
        return None
    until = max(arrivals[-1], busy_starts.max(initial=since))
    return Overload(rate * 1e9, len(busy_starts) / float(until - since) * 1e9, int(waiting[-1]))


def _is_growing(waiting: NDArray[np.integer]) -> bool:
    quarter = len(waiting) // 4
    return bool(waiting[-quarter:].mean() > _GROWTH * waiting[:quarter].mean())


def _is_slower(starts_ns: NDArray[np.int64], arrival_gap_ns: float) -> bool:
    """Return whether the mean gap of the starts is longer than that of arrivals beyond chance.

    It is if there are too few starts for an interval, given that many arrivals.
    """
    interval = Distribution.of_series(np.diff(starts_ns, prepend=0)).mean_interval()
    return interval is None or interval[0] > arrival_gap_ns
