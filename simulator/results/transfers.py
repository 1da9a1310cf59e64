"""The KV transfers of a run by request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import Ints
from simulator.results.record import RunRecord

Nanoseconds = NDArray[np.int64]


class TransfersByRequest:
    """The transfers of a run as arrays of shape (requests,), -1 or False for requests without a transfer.

    `prefill_end_ns` and `joined_ns` are those of `TransferColumns`; `recomputed` is True if the decode replica had to
    compute the prompt. `before_first_token_ns` is the part of the time to the first token that the transfer took: 0 if
    the prefill replica delivered that token.
    """

    def __init__(self, record: RunRecord) -> None:
        transfers, requests = record.transfers, record.requests
        count = len(requests.status)
        self._record = record
        self.prefill_end_ns = _scattered(transfers.request, transfers.prefill_end_ns, count)
        self.joined_ns = _scattered(transfers.request, transfers.joined_ns, count)
        self.recomputed = _scattered(transfers.request, transfers.recomputed, count) == 1
        self._target = _scattered(transfers.request, transfers.target, count)
        first_replica = np.full(count, -1, np.int64)
        segments = record.segments
        first_replica[segments.request[::-1]] = segments.replica[::-1]  # of several, the first is written last
        begins_there = (self._target >= 0) & (first_replica == self._target)
        until_ns = np.where(self.recomputed, requests.first_token_ns, self.joined_ns)
        self.before_first_token_ns = np.where(begins_there, until_ns - self.prefill_end_ns, 0)

    def joined_rows(self, request: Ints) -> tuple[Ints, Nanoseconds]:
        """Return, for requests that joined a decode replica, the row of the first step with each, and the earliest
        start of that step: the end of the step before it, or the time of joining if the replica was idle.
        """
        steps, from_ns = self._record.steps, self.joined_ns[request]
        rows = np.zeros(len(request), np.int64)
        for replica in np.flatnonzero(np.bincount(self._target[request])).tolist():
            selected = np.flatnonzero(self._target[request] == replica)
            begin, end = steps.offsets[replica : replica + 2].tolist()
            rows[selected] = np.searchsorted(steps.sched_ns[begin:end], from_ns[selected]) + begin
            before_ns = np.where(rows[selected] > begin, steps.end_ns[rows[selected] - 1], 0)
            from_ns[selected] = np.maximum(from_ns[selected], before_ns)
        return rows, from_ns


def _scattered(request: Ints, values: Ints, count: int) -> Nanoseconds:
    column = np.full(count, -1, np.int64)
    column[request] = values
    return column
