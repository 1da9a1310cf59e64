"""The log of requests: append-only columns that the engine writes during the run, and that are read at the end."""

from __future__ import annotations

from array import array

import numpy as np

from simulator.common.disk_arrays import chunks, release, stored, zeros
from simulator.engine.logs.segment_log import SegmentLog
from simulator.results.columns import Ints, PreemptionColumns, RequestColumns, SegmentColumns, Status, StepColumns
from simulator.results.record import tokens_by_request
from simulator.workload.requests import RequestTable


class PreemptionLog:
    """Log with one row for each preemption, and counts by request."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.recomputed_tokens: dict[int, int] = {}
        self._request = array("i")
        self._preempted_ns, self._resumed_ns = array("q"), array("q")
        self._away: dict[int, int] = {}  # by preempted request: the row of its last preemption

    def count(self, index: int, lost_tokens: int) -> None:
        """Count a preemption of request `index`, by which `lost_tokens` computed tokens are lost."""
        self.counts[index] = self.counts.get(index, 0) + 1
        self.recomputed_tokens[index] = self.recomputed_tokens.get(index, 0) + lost_tokens

    def leaves(self, index: int, now: int) -> None:
        """Log a preemption of request `index` by a step that is formed now."""
        self._away[index] = len(self._request)
        self._request.append(index)
        self._preempted_ns.append(now)
        self._resumed_ns.append(-1)

    def returns(self, index: int, now: int) -> None:
        """Log that the preempted request `index` is scheduled again."""
        self._resumed_ns[self._away.pop(index)] = now

    def columns(self, replica: Ints) -> PreemptionColumns:
        """Return all preemptions, with their ends; `replica` is that of each request."""
        return in_time(
            PreemptionColumns(
                request=np.frombuffer(self._request, np.int32),
                preempted_ns=np.frombuffer(self._preempted_ns, np.int64),
                resumed_ns=np.frombuffer(self._resumed_ns, np.int64),
            ),
            replica,
        )


def in_time(columns: PreemptionColumns, replica: Ints) -> PreemptionColumns:
    """Return preemptions in order of time, those of one time by `replica`, the engine core of each request."""
    order = np.lexsort((replica[columns.request], columns.preempted_ns))
    return PreemptionColumns(columns.request[order], columns.preempted_ns[order], columns.resumed_ns[order])


class RequestLog:
    """Log with one row for each request; columns known before the run are those of the table."""

    def __init__(self, table: RequestTable) -> None:
        count = len(table)
        self._table = table
        self.client_ns = array("q", [-1]) * count
        self.arrival_ns = array("q", [-1]) * count
        self.scheduled_ns = array("q", [-1]) * count
        self.replica = array("i", [-1]) * count
        self.status = bytearray(count)
        self.refusal = bytearray(count)
        self.segments = SegmentLog()
        self.segment = self.segments.segment  # an attribute for speed, since it is called for every request
        self.preemptions = PreemptionLog()
        # Zeros take no memory until they are written to, so that runs without prefix caching pay nothing for these.
        self._queried = np.zeros(count, np.int64).data  # the tokens looked up, plus 1; 0: none was
        self._cached = np.zeros(count, np.int64).data
        self.recovered_tokens: dict[int, int] = {}

    def events(self, tokens: bytes) -> None:
        """Log the number of tokens of each step of the last segment, whose steps have ended."""
        self.segments.events(tokens)

    def preempted(self, index: int, lost_tokens: int) -> None:
        """Log a preemption of request `index`, by which `lost_tokens` computed tokens are lost."""
        self.preemptions.count(index, lost_tokens)

    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None:
        """Log an admission of request `index`, of whose `queried_tokens` the prefix cache had `cached_tokens`."""
        if not self._queried[index]:
            self._queried[index] = queried_tokens + 1
            self._cached[index] = cached_tokens
        else:
            self.recovered_tokens[index] = self.recovered_tokens.get(index, 0) + cached_tokens

    def columns(self, segments: SegmentColumns, steps: StepColumns, event_tokens: Ints) -> RequestColumns:
        """Return the request columns; times of first and last tokens, and their numbers, follow from the segments.

        `event_tokens` as in `RunRecord`.
        """
        count, status = len(self._table), np.frombuffer(self.status, np.int8)
        first_token, finish = self._token_times(segments, steps)
        for rows in chunks(count):
            finish[rows][status[rows] != Status.COMPLETED] = -1
        emitted = zeros(count, np.int32)
        emitted[:] = tokens_by_request(segments, steps, event_tokens, count)
        release()
        return RequestColumns(
            client_ns=stored(np.frombuffer(self.client_ns, np.int64)),
            arrival_ns=stored(np.frombuffer(self.arrival_ns, np.int64)),
            scheduled_ns=stored(np.frombuffer(self.scheduled_ns, np.int64)),
            first_token_ns=first_token,
            finish_ns=finish,
            prompt_tokens=self._table.prompt_tokens,
            output_tokens=self._table.output_tokens,
            emitted_tokens=emitted,
            class_id=self._table.class_id,
            replica=stored(np.frombuffer(self.replica, np.int32)),
            status=stored(status),
            refusal=stored(np.frombuffer(self.refusal, np.int8)),
            preemptions=_scatter(self.preemptions.counts, count),
            recomputed_tokens=_scatter(self.preemptions.recomputed_tokens, count),
            queried_tokens=self._looked_up(),
            cached_tokens=stored(np.frombuffer(self._cached, np.int64)),
            recovered_tokens=_scatter(self.recovered_tokens, count),
        )

    def clear(self) -> None:
        """Remove the rows, once the columns have been read: cycles of references keep the log longer than the run."""
        self.client_ns, self.arrival_ns, self.scheduled_ns = (array("q") for _ in range(3))
        self.replica, self.status, self.refusal = array("i"), bytearray(), bytearray()
        self._queried, self._cached = memoryview(array("q")), memoryview(array("q"))
        self.segments.clear()

    def _token_times(self, segments: SegmentColumns, steps: StepColumns) -> tuple[Ints, Ints]:
        """Return the times of the first and of the last token of each request, -1 without tokens."""
        first, last = (zeros(len(self._table), np.int64) for _ in range(2))
        first[:], last[:] = -1, -1
        pieces = chunks(len(segments.request))
        for rows in pieces:  # the segments of a request are in order of time: the last one is assigned last
            begin = steps.offsets[segments.replica[rows]]
            last[segments.request[rows]] = steps.end_ns[begin + segments.last_step[rows]]
        for rows in reversed(pieces):
            begin = steps.offsets[segments.replica[rows]]
            first[segments.request[rows][::-1]] = steps.end_ns[begin + segments.first_step[rows]][::-1]
        return first, last

    def _looked_up(self) -> Ints:
        """Return the tokens of each request that were looked up in the prefix cache when it was first admitted."""
        queried = np.frombuffer(self._queried, np.int64)
        if not queried.any():
            return queried
        column = zeros(len(queried), np.int64)
        for rows in chunks(len(queried)):
            column[rows] = np.maximum(queried[rows] - 1, 0)
        return column


class QuietLog(RequestLog):
    """The log of a prefill core whose tokens are not delivered, since the decode core computes them again."""

    def __init__(self, log: RequestLog) -> None:
        for name, column in vars(log).items():
            setattr(self, name, column)  # the same columns
        self.segment = _ignored


def _ignored(index: int, replica: int, first_step: int, last_step: int) -> None:
    """Ignore a segment."""


def _scatter(values: dict[int, int], count: int) -> Ints:
    column = zeros(count, np.int64)
    if values:
        column[list(values)] = list(values.values())
    return column
