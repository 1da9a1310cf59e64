"""The requests that statistics count: completed ones that arrived after the warm-up."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import Status
from simulator.results.latency import in_arrival_order, number
from simulator.results.record import RunRecord
from simulator.results.statistics import mser5

_NS_PER_S = 1e9
_NEARLY_HALF = 0.45


class Selection(NamedTuple):
    """The requests that count (`kept`), and the summary's section on the warm-up (None without one).

    `settled` is False if MSER-5 discarded nearly as many requests as it may: it found no steady state.
    """

    kept: NDArray[np.bool_]
    section: dict[str, Any] | None = None
    settled: bool = True


def select(record: RunRecord, warmup: Literal["none", "mser5"] | int) -> Selection:
    """Apply a rule for the warm-up: none, MSER-5 on TTFT in order of arrival, or a fixed time in ns from the first
    arrival.
    """
    completed = np.asarray(record.requests.status == Status.COMPLETED)
    if warmup == "none":
        return Selection(completed)
    if isinstance(warmup, int):
        return _cut(record, completed, "fixed", record.start_ns + warmup, True)
    requests = record.requests
    rows = in_arrival_order(requests.arrival_ns, completed)
    excluded = mser5((requests.first_token_ns - requests.arrival_ns)[rows])
    if not excluded:
        return _cut(record, completed, "mser5", record.start_ns, True)
    cut_ns = int(requests.arrival_ns[rows[excluded]])
    return _cut(record, completed, "mser5", cut_ns, excluded < _NEARLY_HALF * len(rows))


def _cut(record: RunRecord, completed: NDArray[np.bool_], rule: str, cut_ns: int, settled: bool) -> Selection:
    kept = completed & (record.requests.arrival_ns >= cut_ns)
    excluded = int(completed.sum() - kept.sum())
    cut_s = number((cut_ns - record.start_ns) / _NS_PER_S)
    return Selection(kept, {"rule": rule, "excluded_requests": excluded, "cut_s": cut_s}, settled)
