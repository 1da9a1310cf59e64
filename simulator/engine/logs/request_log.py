"""The recorder: append-only columns that the engine writes while it runs, and nothing reads before the end. Those of
steps are in `step_log`."""

from __future__ import annotations

from array import array
from dataclasses import fields
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import (
    Ints,
    OffloadColumns,
    PreemptionColumns,
    RequestColumns,
    SegmentColumns,
    Status,
    StepColumns,
    TransferColumns,
)
from simulator.results.record import segment_events, segment_tokens
from simulator.workload.requests import RequestTable


class RequestLog:
    """One row a request; what is known beforehand is taken from the table."""

    def __init__(self, table: RequestTable) -> None:
        count = len(table)
        self._table = table
        self.client_ns = array("q", [-1]) * count
        self.arrival_ns = array("q", [-1]) * count
        self.scheduled_ns = array("q", [-1]) * count
        self.replica = array("i", [-1]) * count
        self.status = bytearray(count)
        self.refusal = bytearray(count)
        self.preemptions: dict[int, int] = {}
        self.preempted_request = array("i")
        self.preempted_ns = array("q")
        self.resumed_ns = array("q")
        self._away: dict[int, int] = {}  # by preempted request: the row of its last preemption
        self.recomputed_tokens: dict[int, int] = {}
        self.queried_tokens: dict[int, int] = {}
        self.cached_tokens: dict[int, int] = {}
        self.recovered_tokens: dict[int, int] = {}
        self.segment_request = array("i")
        self.segment_replica = array("i")
        self.segment_first = array("q")
        self.segment_last = array("q")
        self._speculating = array("q")  # the segments whose steps may bring several tokens
        self._events = array("H")  # for each of these, in order, the tokens of each of its steps

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None:
        """Request `index` gets a token at the end of each of the replica's steps from `first_step` to `last_step`; the
        paused ones after the first bring none.

        Those steps may still be under way; what never ends is left out in the end.
        """
        self.segment_request.append(index)
        self.segment_replica.append(replica)
        self.segment_first.append(first_step)
        self.segment_last.append(last_step)

    def events(self, tokens: bytes) -> None:
        """Each step of the segment written last, which has ended, brought that many tokens."""
        self._speculating.append(len(self.segment_request) - 1)
        self._events.extend(tokens)

    def preempted(self, index: int, lost_tokens: int) -> None:
        """Request `index` was preempted, and `lost_tokens` computed tokens with it."""
        self.preemptions[index] = self.preemptions.get(index, 0) + 1
        self.recomputed_tokens[index] = self.recomputed_tokens.get(index, 0) + lost_tokens

    def leaves(self, index: int, now: int) -> None:
        """Request `index` was preempted by a step that is formed now."""
        self._away[index] = len(self.preempted_request)
        self.preempted_request.append(index)
        self.preempted_ns.append(now)
        self.resumed_ns.append(-1)

    def returns(self, index: int, now: int) -> None:
        """The preempted request `index` was scheduled again."""
        self.resumed_ns[self._away.pop(index)] = now

    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None:
        """Request `index` was admitted, and the prefix cache had `cached_tokens` of its `queried_tokens`."""
        if index not in self.queried_tokens:
            self.queried_tokens[index] = queried_tokens
            self.cached_tokens[index] = cached_tokens
        else:
            self.recovered_tokens[index] = self.recovered_tokens.get(index, 0) + cached_tokens

    def segments(self, steps: StepColumns) -> SegmentColumns:
        """The token times, as far as the replicas have completed their `steps`."""
        segments = self._cut(steps)
        begun = segments.first_step <= segments.last_step
        if begun.all():
            return segments
        return SegmentColumns(*(getattr(segments, field.name)[begun] for field in fields(segments)))

    def _cut(self, steps: StepColumns) -> SegmentColumns:
        """All segments that were written, by request, up to the last completed step: those that had not begun then end
        before."""
        order = self._order()
        request = np.frombuffer(self.segment_request, np.int32)[order]
        replica = np.frombuffer(self.segment_replica, np.int32)[order]
        first = np.frombuffer(self.segment_first, np.int64)[order]
        last = np.frombuffer(self.segment_last, np.int64)[order]
        completed = np.diff(steps.offsets)[replica]
        cut = last >= completed
        if cut.any():
            last = np.where(cut, np.maximum(_last_token_rows(steps)[replica], np.minimum(first, completed - 1)), last)
        return SegmentColumns(request, replica, first, last)

    def _order(self) -> NDArray[np.intp]:
        """The written segments by request, and of one request in time, as they were written: the same order whatever
        engine wrote them."""
        return np.argsort(np.frombuffer(self.segment_request, np.int32), kind="stable")

    def event_tokens(self, steps: StepColumns) -> Ints:
        """How many tokens each step of each segment brought, one segment after the other; empty if always one."""
        if not self._speculating:
            return np.zeros(0, np.uint16)
        segments = self._cut(steps)
        begun = segments.first_step <= segments.last_step
        lengths = np.where(begun, segment_events(segments, steps), 0)
        tokens = np.ones(lengths.sum(), np.uint16)
        begins = _begins(lengths)
        order = self._order()
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        rows = place[np.frombuffer(self._speculating, np.int64)]
        own = np.repeat(begins[rows] - _begins(lengths[rows]), lengths[rows]) + np.arange(len(self._events))
        tokens[own] = np.frombuffer(self._events, np.uint16)
        return tokens

    def preemption_columns(self) -> PreemptionColumns:
        """Every preemption, and its end."""
        return PreemptionColumns(
            request=np.frombuffer(self.preempted_request, np.int32),
            preempted_ns=np.frombuffer(self.preempted_ns, np.int64),
            resumed_ns=np.frombuffer(self.resumed_ns, np.int64),
        )

    def columns(self, segments: SegmentColumns, steps: StepColumns) -> RequestColumns:
        """The request columns; first and last token times follow from the segments."""
        count = len(self._table)
        base = steps.offsets[:-1][segments.replica] if len(segments.request) else segments.first_step
        first_token = np.full(count, -1, np.int64)
        last_token = np.full(count, -1, np.int64)
        # A request's segments are in time order: backwards, the first one is written last, and stays.
        first_token[segments.request[::-1]] = steps.end_ns[(base + segments.first_step)[::-1]]
        last_token[segments.request] = steps.end_ns[base + segments.last_step]
        status = np.frombuffer(self.status, np.int8)
        emitted = np.zeros(count, np.int64)
        np.add.at(emitted, segments.request, segment_tokens(segments, steps, self.event_tokens(steps)))
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
            preemptions=_scatter(self.preemptions, count),
            recomputed_tokens=_scatter(self.recomputed_tokens, count),
            queried_tokens=_scatter(self.queried_tokens, count),
            cached_tokens=_scatter(self.cached_tokens, count),
            recovered_tokens=_scatter(self.recovered_tokens, count),
        )


class QuietLog(RequestLog):
    """The log of a prefill replica whose tokens nobody sees: they are computed again where the request goes on."""

    def __init__(self, log: RequestLog) -> None:
        for name, column in vars(log).items():
            setattr(self, name, column)  # the same columns

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None:
        pass


class TransferLog:
    """One row a request that is handed over, opened on its arrival; see `TransferColumns`, whose columns it has."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []

    def open(self, index: int, source: int, target: int) -> list[int]:
        """The row of request `index`, which goes from replica `source` to `target`; its entries by `Moment`."""
        row = [index, source, target, -1, -1, -1, -1, -1, 0, 0, 0]
        self._rows.append(row)
        return row

    def columns(self) -> TransferColumns:
        """What was written."""
        names = [field.name for field in fields(TransferColumns)]
        columns = np.array(self._rows, np.int64).reshape(-1, len(names)).T
        return TransferColumns(**{name: column.copy() for name, column in zip(names, columns, strict=True)})


class OffloadLog:
    """One row a request for which CPU memory had blocks, each time it had; see `OffloadColumns`."""

    def __init__(self) -> None:
        self.request, self.replica, self.tokens = array("q"), array("q"), array("q")
        self.found_ns, self.loaded_ns, self.bytes = array("q"), array("q"), array("q")

    def open(self, index: int, replica: int, tokens: int, now: int) -> int:
        """The row of `tokens` tokens that were found for request `index`; nothing is loaded yet."""
        for column, value in (
            (self.request, index),
            (self.replica, replica),
            (self.tokens, tokens),
            (self.found_ns, now),
            (self.loaded_ns, -1),
            (self.bytes, 0),
        ):
            column.append(value)
        return len(self.request) - 1

    def columns(self) -> OffloadColumns:
        """What was written."""
        return OffloadColumns(**{name: np.frombuffer(column, np.int64) for name, column in vars(self).items()})


class Moment(IntEnum):
    """The places of a transfer's row that become known on the way."""

    PREFILL_END = 3
    RESERVED = 4
    START = 5
    ARRIVED = 6
    JOINED = 7
    BYTES = 8
    FAILURES = 9
    RECOMPUTED = 10


def _last_token_rows(steps: StepColumns) -> Ints:
    """For each replica, the last of its steps that is not paused; -1 if it has none."""
    paused, rows = set(steps.paused.tolist()), []
    for start, end in pairwise(steps.offsets.tolist()):
        row = end - 1
        while row >= start and row in paused:
            row -= 1
        rows.append(row - start)
    return np.array(rows, np.int64)


def _begins(lengths: Ints) -> Ints:
    begins: Ints = np.cumsum(lengths) - lengths
    return begins


def _scatter(values: dict[int, int], count: int) -> Ints:
    column = np.zeros(count, np.int64)
    if values:
        column[list(values)] = list(values.values())
    return column
