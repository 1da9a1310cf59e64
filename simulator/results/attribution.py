"""Where each request's time goes: parts that add up to its E2E, in whole ns.

- `queue`: arrival at the service until it is first scheduled.
- `prefill`: from then to its first token, less what is below.
- `transfer`: with a prefill pool, from the end of the prefill there until the decode side forms its first step with the
  request. If the transfer failed for good, until the decode side's first token: it computed the prompt again.
- `decode`: between tokens, but for what is below.
- `stall`: between tokens, because of the prefill of others: what the chunks of a step added to it, and whole steps in
  which the decode stood still. Where a pool does not tell what chunks add, there is no such part: it is in `decode`.
- `preempted`: from a preemption until it is back. With tokens delivered, that is the whole gap to the next token, which
  includes computing again what was lost; before the first token, until it is scheduled again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.latency import PERCENTILES, number
from simulator.results.record import Ints, RunRecord, Status, segment_rows
from simulator.results.segments import consecutive_segments
from simulator.results.transfers import TransfersByRequest

Nanoseconds = NDArray[np.int64]
Parts = dict[str, Nanoseconds]

#: `transfer` is there if something was handed over, `stall` if every pool tells it (`PoolFacts.stall_told`).
PARTS = ("queue", "prefill", "transfer", "decode", "stall", "preempted")
#: The composition at a percentile is the mean over the requests whose rank is at most this share away from it.
NEARBY = 0.01
_NS_PER_MS = 1e6


def attribute(record: RunRecord) -> Parts:
    """The parts of each request's E2E in ns, by the names of `PARTS`: (requests,) each, 0 where it did not finish."""
    requests, transfers = record.requests, TransfersByRequest(record)
    gaps = _Gaps(record, transfers)
    early_ns, waited_ns = transfers.before_first_token_ns, _waited_ns(record, transfers)
    moved_ns, lost_ns = gaps.summed(gaps.moved_ns), gaps.summed(gaps.lost_ns)
    stall_ns = gaps.summed(gaps.held_ns) + _stalls_ns(record)
    parts = {
        "queue": requests.scheduled_ns - requests.arrival_ns,
        "prefill": requests.first_token_ns - requests.scheduled_ns - early_ns - waited_ns,
        "transfer": early_ns + moved_ns,
        "decode": requests.finish_ns - requests.first_token_ns - moved_ns - stall_ns - lost_ns,
        "stall": stall_ns,
        "preempted": waited_ns + lost_ns,
    }
    if not len(record.transfers.request):
        del parts["transfer"]
    if not all(pool.stall_told for pool in record.pools):
        parts["decode"] = parts["decode"] + parts.pop("stall")
    completed = requests.status == Status.COMPLETED
    return {name: np.where(completed, part, 0).astype(np.int64) for name, part in parts.items()}


def composition(parts: Parts, kept: NDArray[np.bool_]) -> dict[str, dict[str, Any]] | None:
    """What the E2E of the kept requests is made of, in ms: of all (`mean`), and around each percentile of E2E.

    None if no request is kept. Each entry is a mean over requests, so that its parts add up to its `e2e_ms`.
    """
    rows = np.flatnonzero(kept)
    if not len(rows):
        return None
    e2e_ns = np.zeros(len(kept), np.int64)
    for part in parts.values():
        e2e_ns += part
    ordered = rows[np.argsort(e2e_ns[rows], kind="stable")]
    chosen = {"mean": rows} | {name: ordered[_nearby(len(rows), p)] for name, p in PERCENTILES.items()}
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
    """By request: what its segments lost, after the first step of each, to chunks and in paused steps."""
    steps, ends = record.steps, np.asarray(record.steps.end_ns, np.int64)
    lost_ns = np.array(steps.stall_ns, np.int64)
    # A replica's first step may be paused, too, but no segment lies across it.
    lost_ns[steps.paused] = ends[steps.paused] - ends[steps.paused - 1]
    first, last = segment_rows(record.segments, steps)
    until = np.concatenate([[0], np.cumsum(lost_ns)])
    return summed(record.segments.request, until[last + 1] - until[first + 1], len(record.requests.status))


def _waited_ns(record: RunRecord, transfers: TransfersByRequest) -> Nanoseconds:
    """By request: how long it was out of the running list before its first token. What the decode side lost while it
    computed a prompt again is part of the transfer."""
    lost, requests = record.preemptions, record.requests
    early = (lost.resumed_ns >= 0) & (lost.resumed_ns < requests.first_token_ns[lost.request])
    early &= ~(transfers.recomputed[lost.request] & (lost.preempted_ns >= transfers.prefill_end_ns[lost.request]))
    waited = (lost.resumed_ns - lost.preempted_ns)[early]
    return summed(lost.request[early], waited, len(requests.status))


class _Gaps:
    """The gaps between two segments of a request, and what fills them: `moved_ns` of a transfer, `lost_ns` to a
    preemption, `held_ns` in which its decode was held or that chunks added to the step that ended it."""

    def __init__(self, record: RunRecord, transfers: TransfersByRequest) -> None:
        self._record = record
        before, after = consecutive_segments(record)
        first, last = segment_rows(record.segments, record.steps)
        ends = np.asarray(record.steps.end_ns, np.int64)
        self._request, row = record.segments.request[after], first[after]  # the row of the step that ends the gap
        self._begin_ns, self._end_ns = ends[last[before]], ends[row]
        across = record.segments.replica[before] != record.segments.replica[after]
        joined = across & ~transfers.recomputed[self._request]
        recomputed = across & transfers.recomputed[self._request]
        arrival_ns = transfers.joined_ns[self._request]
        self.moved_ns = np.where(joined, arrival_ns - self._begin_ns, 0)
        self.moved_ns[recomputed] = (self._end_ns - self._begin_ns)[recomputed]
        preempted = self._of_preemptions() & ~recomputed
        self.lost_ns = np.where(preempted, self._end_ns - self._begin_ns - self.moved_ns, 0)
        whole_ns = ends[row - 1] - self._begin_ns
        whole_ns[joined] = self._held_since_joining(transfers, joined, row, ends)
        self.held_ns = np.where(preempted | recomputed, 0, whole_ns + record.steps.stall_ns[row])

    def _held_since_joining(
        self, transfers: TransfersByRequest, joined: NDArray[np.bool_], row: Ints, ends: Nanoseconds
    ) -> Nanoseconds:
        """Of gaps in which a request joined: the whole steps from the one that was formed then to that of its token."""
        first, from_ns = transfers.joined_rows(self._request[joined])
        row = row[joined]
        return np.where(row > first, ends[row - 1] - from_ns, 0)

    def summed(self, gaps_ns: Nanoseconds) -> Nanoseconds:
        """By request: the sum of what is given for each gap."""
        return summed(self._request, gaps_ns, len(self._record.requests.status))

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


def summed(request: Ints, values: Nanoseconds, count: int) -> Nanoseconds:
    """Values added up by request, exactly: (count,)."""
    totals = np.zeros(count, np.int64)
    np.add.at(totals, request, values)
    return totals
