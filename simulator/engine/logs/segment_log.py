"""The log of token times, as ranges of steps."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import chunks, release, zeros
from simulator.results.columns import Ints, SegmentColumns, StepColumns, part
from simulator.results.record import segment_events


class SegmentLog:
    """Log with one row for each range of steps of an engine core that each produce a token of a request."""

    def __init__(self) -> None:
        self._request, self._core = array("i"), array("i")
        self._first, self._last = array("q"), array("q")
        self._speculating = array("q")  # rows whose steps may produce several tokens
        self._events = bytearray()  # the numbers of tokens of their steps, row after row

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None:
        """Log a token of request `index` at the end of each of the core's steps from `first_step` to `last_step`.

        Paused steps after the first produce none. The steps may still be in flight; those that never end are removed
        at the end of the run.
        """
        self._request.append(index)
        self._core.append(replica)
        self._first.append(first_step)
        self._last.append(last_step)

    def events(self, tokens: bytes) -> None:
        """Log the number of tokens of each step of the last segment, whose steps have ended."""
        self._speculating.append(len(self._request) - 1)
        self._events += tokens

    def clear(self) -> None:
        """Remove all rows."""
        self._request, self._core = array("i"), array("i")
        self._first, self._last, self._speculating = array("q"), array("q"), array("q")
        self._events = bytearray()

    def columns(self, steps: StepColumns) -> SegmentColumns:
        """Return the token times of the cores' completed `steps`."""
        segments = self._cut(steps)
        begun = segments.first_step <= segments.last_step
        return segments if begun.all() else part(segments, begun)

    def _cut(self, steps: StepColumns) -> SegmentColumns:
        """Return all segments, by request, truncated at the last completed step.

        A segment that starts later ends before its start.
        """
        order = self._order()
        logged = (self._request, np.int32), (self._core, np.int32), (self._first, np.int64), (self._last, np.int64)
        columns = SegmentColumns(*(_in_order(np.frombuffer(log, dtype), order) for log, dtype in logged))
        lengths, last_rows = np.diff(steps.offsets), None
        for rows in chunks(len(order)):
            some = part(columns, rows)
            completed = lengths[some.replica]
            cut = some.last_step >= completed
            if cut.any():
                last_rows = _last_token_rows(steps) if last_rows is None else last_rows
                until = np.maximum(last_rows[some.replica], np.minimum(some.first_step, completed - 1))
                some.last_step[cut] = until[cut]
        release()
        return columns

    def _order(self) -> NDArray[np.intp]:
        """Return the order of the segments by request, and within a request by time of writing.

        It is the same for the lazy and the explicit batch.
        """
        return np.argsort(np.frombuffer(self._request, np.int32), kind="stable")

    def event_tokens(self, steps: StepColumns) -> Ints:
        """Return the tokens of each step of each segment, one segment after the other; empty if always one."""
        if not self._speculating:
            return np.zeros(0, np.uint16)
        segments = self._cut(steps)
        begun = segments.first_step <= segments.last_step
        lengths = np.where(begun, segment_events(segments, steps), 0)
        order = self._order()
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        rows = place[np.frombuffer(self._speculating, np.int64)]
        ends, own = np.cumsum(lengths)[rows].tolist(), lengths[rows].tolist()
        tokens, logged, at = bytearray(b"\1") * int(lengths.sum()), self._events, 0
        for end, length in zip(ends, own, strict=True):
            tokens[end - length : end] = logged[at : at + length]
            at += length
        return np.frombuffer(tokens, np.uint8).astype(np.uint16)


def _in_order(log: Ints, order: NDArray[np.intp]) -> Ints:
    """Return the entries of a log in this order."""
    column = zeros(len(log), log.dtype)
    for rows in chunks(len(log)):
        column[rows] = log[order[rows]]
    return column


def _last_token_rows(steps: StepColumns) -> Ints:
    """Return the last step of each core that is not paused; -1 if it has none."""
    paused, rows = set(steps.paused.tolist()), []
    for start, end in pairwise(steps.offsets.tolist()):
        row = end - 1
        while row >= start and row in paused:
            row -= 1
        rows.append(row - start)
    return np.array(rows, np.int64)
