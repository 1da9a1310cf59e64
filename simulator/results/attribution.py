"""The parts of each request's end-to-end latency (E2E), in whole ns, which add up to it exactly.

- `queue`: from the arrival until the first step with the request is formed.
- `prefill`: from then to the first token, without the parts below.
- `transfer`: with a prefill pool, from the end of the prefill until the decode replica forms its first step with the
  request. If the transfer failed for good, until the decode replica's first token, since it computes the prompt again.
- `decode`: between tokens, without the parts below.
- `stall`: between tokens, the delay caused by the prefill of other requests: the time that their chunks add to a step,
  and whole steps in which decodes are paused. Where a pool does not record the time of chunks, there is no such part
  and `decode` includes it.
- `preempted`: from a preemption until the request is resumed. After the first token, it is the whole gap to the next
  token, which includes the recomputation of lost KV; before the first token, it ends when the request is scheduled
  again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import release, zeros
from simulator.results.columns import Ints, Status, StepColumns
from simulator.results.latency import PERCENTILES, number
from simulator.results.record import RunRecord, segment_rows
from simulator.results.segments import consecutive_segments
from simulator.results.transfers import TransfersByRequest

Nanoseconds = NDArray[np.int64]
Parts = dict[str, Nanoseconds]

#: `transfer` exists if there are KV transfers, `stall` if all pools record it (`PoolFacts.records_stalls`).
PARTS = ("queue", "prefill", "transfer", "decode", "stall", "preempted")
#: The parts at a percentile are means over the requests whose rank is at most this share away from it.
NEARBY = 0.01
_NS_PER_MS = 1e6


def attribute(record: RunRecord) -> Parts:
    """Return the parts of each request's E2E in ns by the names in `PARTS`.

    Shape of each: (requests,), with 0 for requests that are not completed.
    """
    recorded = {
        "transfer": len(record.transfers.request) > 0,
        "stall": all(pool.records_stalls for pool in record.pools),
    }
    count = len(record.requests.status)
    parts = {name: zeros(count, np.int64) for name in PARTS if recorded.get(name, True)}
    lost_ns = _lost_ns(record.steps)
    for rows, some in record.by_requests():
        found = _attribute(some, lost_ns)
        if not recorded["stall"]:
            found["decode"] += found["stall"]
        completed = some.requests.status == Status.COMPLETED
        for name, part in parts.items():
            np.copyto(part[rows], found[name], where=completed)
        release()
    return parts


def _attribute(record: RunRecord, steps_lost_ns: Nanoseconds) -> Parts:
    """Return all parts of each request's E2E in ns, valid for completed requests; `steps_lost_ns` as in `_lost_ns`."""
    requests, transfers = record.requests, TransfersByRequest(record)
    gaps = _Gaps(record, transfers)
    early_ns, waited_ns = transfers.before_first_token_ns, _waited_ns(record, transfers)
    moved_ns, lost_ns = gaps.summed(gaps.moved_ns), gaps.summed(gaps.lost_ns)
    stall_ns = gaps.summed(gaps.held_ns) + _stalls_ns(record, steps_lost_ns)
    return {
        "queue": requests.scheduled_ns - requests.arrival_ns,
        "prefill": requests.first_token_ns - requests.scheduled_ns - early_ns - waited_ns,
        "transfer": early_ns + moved_ns,
        "decode": requests.finish_ns - requests.first_token_ns - moved_ns - stall_ns - lost_ns,
        "stall": stall_ns,
        "preempted": waited_ns + lost_ns,
    }


def composition(parts: Parts, kept: NDArray[np.bool_]) -> dict[str, dict[str, Any]] | None:
    """Return the mean parts of the kept requests' E2E in ms: of all of them (`mean`), and around each percentile of
    E2E.

    None if no request is kept. Each entry is a mean over requests, so that its parts add up to its `e2e_ms`.
    """
    rows = np.flatnonzero(kept)
    if not len(rows):
        return None
    e2e_ns = np.zeros(len(kept), np.int64)
    for part in parts.values():
        e2e_ns += part
    ordered = rows[np.argsort(e2e_ns[rows], kind="stable")]
    chosen = {"mean": rows} | {name: ordered[_ranks_near(len(rows), p)] for name, p in PERCENTILES.items()}
    return {name: _mean(parts, some) for name, some in chosen.items()}


def _ranks_near(count: int, p: float) -> slice:
    """Return the ranks around the p-quantile of `count` ordered values, at least the ones between which it lies."""
    middle, reach = (count - 1) * p, NEARBY * count
    return slice(max(math.floor(middle - reach), 0), min(math.ceil(middle + reach), count - 1) + 1)


def _mean(parts: Parts, rows: NDArray[np.intp]) -> dict[str, Any]:
    sums = {name: int(part[rows].sum()) for name, part in parts.items()}
    scale = len(rows) * _NS_PER_MS
    means = {f"{name}_ms": number(total / scale) for name, total in sums.items()}
    return {"requests": len(rows), "e2e_ms": number(sum(sums.values()) / scale)} | means


def _lost_ns(steps: StepColumns) -> Nanoseconds:
    """Return the time lost to prefill chunks and in paused steps before each row of the step log; shape (rows + 1,)."""
    lost_ns, ends = zeros(len(steps.end_ns) + 1, np.int64), np.asarray(steps.end_ns, np.int64)
    lost_ns[1:] = steps.stall_ns
    # A replica's first step may be paused, too, but no segment includes it.
    lost_ns[steps.paused + 1] = ends[steps.paused] - ends[steps.paused - 1]
    np.cumsum(lost_ns, out=lost_ns)
    return lost_ns


def _stalls_ns(record: RunRecord, lost_ns: Nanoseconds) -> Nanoseconds:
    """Return by request the time lost to prefill chunks and in paused steps, after the first step of each segment."""
    first, last = segment_rows(record.segments, record.steps)
    return summed(record.segments.request, lost_ns[last + 1] - lost_ns[first + 1], len(record.requests.status))


def _waited_ns(record: RunRecord, transfers: TransfersByRequest) -> Nanoseconds:
    """Return by request the time between preemption and resumption before the first token.

    Without preemptions on a decode replica that computes a prompt again: those belong to the transfer.
    """
    lost, requests = record.preemptions, record.requests
    early = (lost.resumed_ns >= 0) & (lost.resumed_ns < requests.first_token_ns[lost.request])
    early &= ~(transfers.recomputed[lost.request] & (lost.preempted_ns >= transfers.prefill_end_ns[lost.request]))
    waited = (lost.resumed_ns - lost.preempted_ns)[early]
    return summed(lost.request[early], waited, len(requests.status))


class _Gaps:
    """The gaps between successive segments of a request, and their parts.

    `moved_ns` belongs to a KV transfer and `lost_ns` to a preemption. In `held_ns`, the decode was paused, or chunks
    prolonged the step that ended the gap.
    """

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
        preempted = self._end_preemptions() & ~recomputed
        self.lost_ns = np.where(preempted, self._end_ns - self._begin_ns - self.moved_ns, 0)
        whole_ns = ends[row - 1] - self._begin_ns
        whole_ns[joined] = self._held_since_joining(transfers, joined, row, ends)
        self.held_ns = np.where(preempted | recomputed, 0, whole_ns + record.steps.stall_ns[row])

    def _held_since_joining(
        self, transfers: TransfersByRequest, joined: NDArray[np.bool_], row: Ints, ends: Nanoseconds
    ) -> Nanoseconds:
        """Return, for gaps in which a request joined its decode replica, the time of the whole steps from then to its
        token.
        """
        first, from_ns = transfers.joined_rows(self._request[joined])
        row = row[joined]
        return np.where(row > first, ends[row - 1] - from_ns, 0)

    def summed(self, gaps_ns: Nanoseconds) -> Nanoseconds:
        """Return the sum of a value per gap by request."""
        return summed(self._request, gaps_ns, len(self._record.requests.status))

    def _end_preemptions(self) -> NDArray[np.bool_]:
        """Return which gaps include the end of a preemption: the request is resumed within the gap or at its begin."""
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
    """Return the sum of values by request in exact integers; shape (count,)."""
    totals = np.zeros(count, np.int64)
    np.add.at(totals, request, values)
    return totals
