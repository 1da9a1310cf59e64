"""Inter-token latencies from segments, without storing a number per token.

All requests that get a token from two successive steps of a replica (paused steps left out) have the same gap between
the two tokens. Its weight is the number of segments that cover both steps. The other gaps are stored one by one: those
after a first token from a paused step, and those between two segments of a request that was preempted or paused.

With speculation these are the gaps between events of a stream. Tokens of one event have no time between them: by token,
each step has in addition a gap of 0, weighted by the number of such tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import stored
from simulator.results.record import RunRecord, segment_rows
from simulator.results.segments import consecutive_segments, further_tokens
from simulator.results.statistics import BATCHES, Distribution

_TIME_BINS = 4096  # combined into batches of about equal weight


class InterTokenLatencies:
    """The gaps of a run, sorted once; `of` weighs them for any group of requests.

    For intervals the sampling unit is the step, not the token: a batch of 100 that waits for one long step is one
    observation of weight 100.
    """

    def __init__(self, record: RunRecord) -> None:
        self._gaps = _Gaps(record)
        self._within = _TokensWithinEvents(record)
        used = np.flatnonzero(self._gaps.weights(np.ones(len(record.requests.status), bool))).astype(np.int32)
        values = self._gaps.values_ns()[used].astype(float)
        order = np.argsort(values)
        self._values, self._order = stored(values[order]), stored(used[order])
        ends_ns = np.concatenate([self._within.ends_ns, self._gaps.ends_ns()[self._order]])
        self._within_bin, self._bin = np.split(_time_bins(ends_ns), [len(self._within.ends_ns)])

    def of(self, chosen: NDArray[np.bool_]) -> Distribution:
        """Return the gaps in ns between tokens of the requests where `chosen` (one entry per request) is True."""
        if not len(self._within.ends_ns):
            return self.of_events(chosen)
        weights = np.concatenate([self._within.weights(chosen), self._gaps.weights(chosen)[self._order]])
        values = np.concatenate([np.zeros(len(self._within_bin)), self._values])
        return _distribution(values, np.concatenate([self._within_bin, self._bin]), weights)

    def of_events(self, chosen: NDArray[np.bool_]) -> Distribution:
        """Return the gaps in ns between stream events of the chosen requests; without speculation, those between
        tokens.
        """
        return _distribution(self._values, self._bin, self._gaps.weights(chosen)[self._order])


def itl_values(record: RunRecord, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the gaps in ns between tokens of the chosen requests, in no order, and the number of times each occurs."""
    gaps, within = _Gaps(record), _TokensWithinEvents(record)
    values = np.concatenate([gaps.values_ns(), [0]])
    weights = np.concatenate([gaps.weights(chosen), [within.weights(chosen).sum()]])
    return values[weights > 0], weights[weights > 0]


def _distribution(values: NDArray[np.float64], bins: NDArray[np.uint16], weights: NDArray[np.integer]) -> Distribution:
    some = weights > 0
    if not some.all():
        values, bins, weights = values[some], bins[some], weights[some]
    weight = stored(weights.astype(float))
    return Distribution(values, weight, _batches(bins, weight))


class _TokensWithinEvents:
    """The tokens after the first of each event, by step; `ends_ns` are the ends of the steps that have any."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        tokens = further_tokens(record, np.arange(len(record.segments.request)))
        self._rows = np.flatnonzero(tokens)
        self._all = tokens[self._rows]
        self.ends_ns = np.asarray(record.steps.end_ns, np.int64)[self._rows]

    def weights(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of such tokens for the chosen requests, by step."""
        segments = np.flatnonzero(chosen[self._record.segments.request])
        if len(segments) == len(self._record.segments.request):
            return self._all
        return further_tokens(self._record, segments)[self._rows]


class _Gaps:
    """All gaps of a run: those between successive steps that are not paused, then those of single requests."""

    def __init__(self, record: RunRecord) -> None:
        ends, paused = np.asarray(record.steps.end_ns, np.int64), record.steps.paused
        first, last = segment_rows(record.segments, record.steps)
        self._request = record.segments.request
        self._ends, self._first, self._last, single = ends, first, last, paused
        if len(paused):
            self._ends = np.delete(ends, paused)
            # A paused row is replaced by the next row that is not paused.
            self._first, self._last = (rows - np.searchsorted(paused, rows) for rows in (first, last))
            single = np.flatnonzero((last > first) & np.isin(first, paused))
        before, after = consecutive_segments(record)
        self._first, self._last = stored(self._first), stored(self._last)
        self._own = np.concatenate([self._request[after], self._request[single]])
        self._own_from_ns = np.concatenate([ends[last[before]], ends[first[single]]])
        self._own_to_ns = np.concatenate([ends[first[after]], self._ends[self._first[single]]])

    def values_ns(self) -> NDArray[np.int64]:
        """Return the length of each gap. Between the last row of a replica and the first of the next it is meaningless
        and always has weight 0.
        """
        return np.concatenate([np.diff(self._ends), self._own_to_ns - self._own_from_ns])

    def ends_ns(self) -> NDArray[np.int64]:
        """Return the end of each gap."""
        return np.concatenate([self._ends[1:], self._own_to_ns])

    def weights(self, chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the number of times each gap occurs between tokens of the chosen requests."""
        selected, rows = chosen[self._request], len(self._ends) + 1  # a paused row at the end has no such next row
        change = np.bincount(self._first[selected], minlength=rows)
        change -= np.bincount(self._last[selected], minlength=rows)
        between_steps = np.cumsum(change[:-2], dtype=np.int32)
        return np.concatenate([between_steps, chosen[self._own].astype(np.int32)])


def _time_bins(times_ns: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Return the bin of each time, of `_TIME_BINS` equally long ones between the first and the last time."""
    if not len(times_ns):
        return np.zeros(0, np.uint16)
    start = times_ns.min()
    bins: NDArray[np.float64] = (times_ns - start) * (_TIME_BINS / (float(times_ns.max() - start) + 1))
    return np.minimum(bins, _TIME_BINS - 1).astype(np.uint16)


def _batches(bins: NDArray[np.uint16], weights: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the batch of each value; batches are consecutive in time and have about the same weight."""
    totals = np.bincount(bins, weights, _TIME_BINS)
    middles = np.cumsum(totals) - totals / 2
    batch_of_bin = middles * (BATCHES / max(totals.sum(), 1.0))
    batches: NDArray[np.uint8] = np.minimum(batch_of_bin, BATCHES - 1).astype(np.uint8)[bins]
    return batches
