"""Means over time of step columns: running sequences, KV blocks in use, whether requests waited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import release, stored
from simulator.results.record import RunRecord

Floats = NDArray[np.float64]


class Occupancy:
    """The time for which each row of the step log holds, and means weighted by it.

    A row holds from the moment its step is formed until the next step is formed, or until its own end if the replica
    idles after it. An idle replica counts as 0. Means are over the whole run and all replicas; the mean of a Boolean
    column is a share of time.
    """

    def __init__(self, record: RunRecord) -> None:
        steps = record.steps
        self._offsets = np.asarray(steps.offsets, np.int64)
        self._from_ns, ends = np.asarray(steps.sched_ns, np.int64), np.asarray(steps.end_ns, np.int64)
        until = np.append(self._from_ns[1:], ends[-1:])
        last_rows = self._offsets[self._offsets > 0] - 1
        until[last_rows] = ends[last_rows]
        self._spans_ns = stored((np.minimum(until, ends) - self._from_ns).astype(float))
        self._total_ns = float(record.core_time_ns)

    def mean(self, column: NDArray[np.generic]) -> float:
        """Return the mean of a step column over time and replicas; 0 for a run without duration."""
        if self._total_ns <= 0:
            return 0.0
        mean = float(np.sum(self._spans_ns * column)) / self._total_ns
        release()
        return mean

    def over_time(self, column: NDArray[np.generic], edges_ns: NDArray[np.int64]) -> Floats:
        """Return the mean of a step column in each interval between successive, increasing `edges_ns`.

        Shape: (replicas, len(edges_ns) - 1).
        """
        rows = [slice(first, last) for first, last in zip(self._offsets[:-1], self._offsets[1:], strict=True)]
        integrals = np.array([self._integral(column[row].astype(float), row, edges_ns) for row in rows])
        return np.diff(integrals, axis=1) / np.diff(edges_ns)

    def _integral(self, values: Floats, rows: slice, times_ns: NDArray[np.int64]) -> Floats:
        """Return the integral of one replica's `values` over time, up to each of `times_ns`."""
        if not len(values):
            return np.zeros(len(times_ns))
        from_ns, spans = self._from_ns[rows], self._spans_ns[rows]
        before = np.concatenate([[0.0], np.cumsum(values * spans)])
        row = np.maximum(np.searchsorted(from_ns, times_ns, "right") - 1, 0)
        passed_ns: Floats = np.clip(times_ns - from_ns[row], 0, spans[row])
        return before[row] + values[row] * passed_ns
