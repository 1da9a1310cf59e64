"""The log of requests: append-only columns that the engine writes during the run, and that are read at the end."""

from __future__ import annotations

from array import array

import numpy as np

from simulator.engine.logs.segment_log import SegmentLog
from simulator.results.columns import Ints, PreemptionColumns, RequestColumns, SegmentColumns, Status, StepColumns
from simulator.results.record import segment_tokens
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

    def columns(self) -> PreemptionColumns:
        """Return all preemptions, with their ends."""
        return PreemptionColumns(
            request=np.frombuffer(self._request, np.int32),
            preempted_ns=np.frombuffer(self._preempted_ns, np.int64),
            resumed_ns=np.frombuffer(self._resumed_ns, np.int64),
        )


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
        self.queried_tokens: dict[int, int] = {}
        self.cached_tokens: dict[int, int] = {}
        self.recovered_tokens: dict[int, int] = {}

    def events(self, tokens: bytes) -> None:
        """Log the number of tokens of each step of the last segment, whose steps have ended."""
        self.segments.events(tokens)

    def preempted(self, index: int, lost_tokens: int) -> None:
        """Log a preemption of request `index`, by which `lost_tokens` computed tokens are lost."""
        self.preemptions.count(index, lost_tokens)

    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None:
        """Log an admission of request `index`, of whose `queried_tokens` the prefix cache had `cached_tokens`."""
        if index not in self.queried_tokens:
            self.queried_tokens[index] = queried_tokens
            self.cached_tokens[index] = cached_tokens
        else:
            self.recovered_tokens[index] = self.recovered_tokens.get(index, 0) + cached_tokens

    def columns(self, segments: SegmentColumns, steps: StepColumns) -> RequestColumns:
        """Return the request columns; first and last token times follow from the segments."""
        count = len(self._table)
        base = steps.offsets[:-1][segments.replica] if len(segments.request) else segments.first_step
        first_token = np.full(count, -1, np.int64)
        last_token = np.full(count, -1, np.int64)
        # The segments of a request are in order of time: in reverse, the first one is assigned last, and remains.
        first_token[segments.request[::-1]] = steps.end_ns[(base + segments.first_step)[::-1]]
        last_token[segments.request] = steps.end_ns[base + segments.last_step]
        status = np.frombuffer(self.status, np.int8)
        emitted = np.zeros(count, np.int64)
        np.add.at(emitted, segments.request, segment_tokens(segments, steps, self.segments.event_tokens(steps)))
        return RequestColumns(
            client_ns=np.frombuffer(self.client_ns, np.int64),
            arrival_ns=np.frombuffer(self.arrival_ns, np.int64),
            scheduled_ns=np.frombuffer(self.scheduled_ns, np.int64),
            first_token_ns=first_token,
            finish_ns=np.where(status == Status.COMPLETED, last_token, -1),
            prompt_tokens=self._table.prompt_tokens,
            output_tokens=self._table.output_tokens,
            emitted_tokens=emitted.astype(np.int32),
            class_id=self._table.class_id,
            replica=np.frombuffer(self.replica, np.int32),
            status=status,
            refusal=np.frombuffer(self.refusal, np.int8),
            preemptions=_scatter(self.preemptions.counts, count),
            recomputed_tokens=_scatter(self.preemptions.recomputed_tokens, count),
            queried_tokens=_scatter(self.queried_tokens, count),
            cached_tokens=_scatter(self.cached_tokens, count),
            recovered_tokens=_scatter(self.recovered_tokens, count),
        )


class QuietLog(RequestLog):
    """The log of a prefill core whose tokens are not delivered, since the decode core computes them again."""

    def __init__(self, log: RequestLog) -> None:
        for name, column in vars(log).items():
            setattr(self, name, column)  # the same columns
        self.segment = _ignored


def _ignored(index: int, replica: int, first_step: int, last_step: int) -> None:
    """Ignore a segment."""


def _scatter(values: dict[int, int], count: int) -> Ints:
    column = np.zeros(count, np.int64)
    if values:
        column[list(values)] = list(values.values())
    return column
