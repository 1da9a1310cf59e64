"""Where each request's time goes: parts that add up to its E2E, in whole ns.

- `queue`: arrival at the service until it is first scheduled.
- `prefill`: from then to its first token, less what it was preempted.
- `decode`: between tokens, but for what is below.
- `stall`: between tokens, because of the prefill of others: what the chunks of a step added to it, and whole steps in
  which the decode was held.
- `preempted`: from a preemption until it is back. With tokens delivered, that is the whole gap to the next token, which
  includes computing again what was lost; before the first token, until it is scheduled again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.latency import PERCENTILES, number
from simulator.results.record import RunRecord, Status
from simulator.results.segments import consecutive_segments, segment_rows

Nanoseconds = NDArray[np.int64]
Parts = dict[str, Nanoseconds]

PARTS = ("queue", "prefill", "decode", "stall", "preempted")
#: The composition at a percentile is the mean over the requests whose rank is at most this share away from it.
NEARBY = 0.01
_NS_PER_MS = 1e6


def attribute(record: RunRecord) -> Parts:
    """The parts of each request's E2E in ns, by the names of `PARTS`: (requests,) each, 0 where it did not finish."""
    requests = record.requests
    count = len(requests.status)
    gaps = _Gaps(record)
    held_ns, stalled_ns = gaps.by_request(gaps.held_ns(), count), _stalls_ns(record)
    waited_ns, lost_ns = _waited_ns(record), gaps.by_request(gaps.lost_ns(), count)
    stall = held_ns + stalled_ns
    parts = {
        "queue": requests.scheduled_ns - requests.arrival_ns,
        "prefill": requests.first_token_ns - requests.scheduled_ns - waited_ns,
        "decode": requests.finish_ns - requests.first_token_ns - stall - lost_ns,
        "stall": stall,
        "preempted": waited_ns + lost_ns,
    }
    completed = requests.status == Status.COMPLETED
    return {name: np.where(completed, part, 0).astype(np.int64) for name, part in parts.items()}


def composition(parts: Parts, kept: NDArray[np.bool_]) -> dict[str, dict[str, Any]] | None:
    """What the E2E of the kept requests is made of, in ms: of all (`mean`), and around each percentile of E2E.

    None if no request is kept. Each entry is a mean over requests, so that its parts add up to its `e2e_ms`.
    """
    rows = np.flatnonzero(kept)
    if not len(rows):
        return None
    e2e_ns = np.sum([part[rows] for part in parts.values()], axis=0)
    rows = rows[np.argsort(e2e_ns, kind="stable")]
    chosen = {"mean": rows} | {name: rows[_nearby(len(rows), p)] for name, p in PERCENTILES.items()}
    return {name: _mean(parts, some) for name, some in chosen.items()}


def _nearby(count: int, p: float) -> slice:
    """The ranks around the p-quantile of `count` ordered values: at least the one or two that it lies between."""
    middle, reach = (count - 1) * p, NEARBY * count
    return slice(max(math.floor(middle - reach), 0), min(math.ceil(middle + reach), count - 1) + 1)


def _mean(parts: Parts, rows: NDArray[np.intp]) -> dict[str, Any]:
    sums = {name: int(part[rows].sum()) for name, part in parts.items()}
    scale = len(rows) * _NS_PER_MS
    means = {f"{name}_ms": number(total / scale) for name, total in sums.items()}
    return {"requests": len(rows), "e2e_ms": number(sum(sums.values()) / scale)} | means


def _stalls_ns(record: RunRecord) -> Nanoseconds:
    """By request: what chunks of others added to the steps that brought it a token after the first of a segment."""
    first, last = segment_rows(record)
    until = np.concatenate([[0], np.cumsum(record.steps.stall_ns, dtype=np.int64)])
    return _sums(record.segments.request, until[last + 1] - until[first + 1], len(record.requests.status))


def _waited_ns(record: RunRecord) -> Nanoseconds:
    """By request: how long it was out of the running list before its first token."""
    lost, requests = record.preemptions, record.requests
    early = (lost.resumed_ns >= 0) & (lost.resumed_ns < requests.first_token_ns[lost.request])
    waited = (lost.resumed_ns - lost.preempted_ns)[early]
    return _sums(lost.request[early], waited, len(requests.status))


class _Gaps:
    """The gaps between two segments of a request: each because of a preemption, or because its decode was held."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        before, after = consecutive_segments(record)
        first, last = segment_rows(record)
        ends = np.asarray(record.steps.end_ns, np.int64)
        self._request = record.segments.request[after]
        self._row = first[after]  # the step that ends the gap
        self._begin_ns, self._end_ns = ends[last[before]], ends[self._row]
        self._preempted = self._of_preemptions()

    def by_request(self, gaps_ns: Nanoseconds, count: int) -> Nanoseconds:
        """The sums of what is given for each gap, by request."""
        return _sums(self._request, gaps_ns, count)

    def lost_ns(self) -> Nanoseconds:
        """Of each gap: the time lost to a preemption."""
        return np.where(self._preempted, self._end_ns - self._begin_ns, 0)

    def held_ns(self) -> Nanoseconds:
        """Of each gap: the time that its decode was held, and what chunks added to the step that ended it."""
        steps = self._record.steps
        whole_ns = np.asarray(steps.end_ns, np.int64)[self._row - 1] - self._begin_ns
        return np.where(self._preempted, 0, whole_ns + steps.stall_ns[self._row])

    def _of_preemptions(self) -> NDArray[np.bool_]:
        """Which gaps hold the end of a preemption: it is back at or after a gap's begin, and before its end."""
        lost, gaps = self._record.preemptions, len(self._request)
        back = np.flatnonzero(lost.resumed_ns >= 0)
        request = np.concatenate([self._request, lost.request[back]])
        time_ns = np.concatenate([self._begin_ns, lost.resumed_ns[back]])
        is_return = np.arange(len(request)) >= gaps
        order = np.lexsort((is_return, time_ns, request))
        # Gaps are in order of request and time: the latest one up to each entry is the highest number so far.
        latest = np.maximum.accumulate(np.where(is_return[order], -1, order))
        gap, returns = latest[is_return[order]], order[is_return[order]]
        gap, returns = gap[gap >= 0], returns[gap >= 0]
        inside = (request[returns] == self._request[gap]) & (time_ns[returns] < self._end_ns[gap])
        found = np.zeros(gaps, bool)
        found[gap[inside]] = True
        return found


def _sums(request: NDArray[np.integer], values: Nanoseconds, count: int) -> Nanoseconds:
    """Values added up by request, exactly: (count,)."""
    totals = np.zeros(count, np.int64)
    np.add.at(totals, request, values)
    return totals
