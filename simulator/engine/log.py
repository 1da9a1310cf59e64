"""The recorder: append-only columns that the engine writes while it runs, and nothing reads before the end."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import Refusal, RequestColumns, SegmentColumns, Status, StepColumns
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
        self.recomputed_tokens: dict[int, int] = {}
        self.segment_request = array("i")
        self.segment_first = array("q")
        self.segment_last = array("q")

    def segment(self, index: int, first_step: int, last_step: int) -> None:
        """Request `index` got one token at the end of each of its replica's steps from `first_step` to `last_step`."""
        self.segment_request.append(index)
        self.segment_first.append(first_step)
        self.segment_last.append(last_step)

    def preempted(self, index: int, lost_tokens: int) -> None:
        """Request `index` was preempted, and `lost_tokens` computed tokens with it."""
        self.preemptions[index] = self.preemptions.get(index, 0) + 1
        self.recomputed_tokens[index] = self.recomputed_tokens.get(index, 0) + lost_tokens

    def segments(self) -> SegmentColumns:
        """The token times so far."""
        request = np.frombuffer(self.segment_request, np.int32)
        replica = np.frombuffer(self.replica, np.int32)[request]
        first, last = np.frombuffer(self.segment_first, np.int64), np.frombuffer(self.segment_last, np.int64)
        return SegmentColumns(request, replica, first, last)

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
        np.add.at(emitted, segments.request, segments.last_step - segments.first_step + 1)
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
        )

    def refuse(self, index: int, reason: Refusal) -> None:
        """Request `index` was turned away."""
        self.status[index] = Status.REJECTED
        self.refusal[index] = reason


class StepLog:
    """One row a step of one replica, written when the step is formed; `completed` counts the steps that have ended."""

    def __init__(self) -> None:
        self.sched_ns, self.start_ns, self.end_ns = array("q"), array("q"), array("q")
        self.decodes, self.prefill_tokens = array("i"), array("i")
        self.running, self.waiting, self.kv_used = array("i"), array("i"), array("q")
        self.completed = 0
        #: One `append` a column, in the order of the columns above.
        self.appends = (
            self.sched_ns.append,
            self.start_ns.append,
            self.end_ns.append,
            self.decodes.append,
            self.prefill_tokens.append,
            self.running.append,
            self.waiting.append,
            self.kv_used.append,
        )


def step_columns(logs: list[StepLog]) -> StepColumns:
    """The completed steps of all replicas, one after the other."""
    offsets = np.concatenate([[0], np.cumsum([log.completed for log in logs])]).astype(np.int64)

    def column(name: str, dtype: type[np.integer]) -> NDArray[np.integer]:
        parts = [np.frombuffer(getattr(log, name), dtype)[: log.completed] for log in logs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return StepColumns(
        offsets=offsets,
        sched_ns=column("sched_ns", np.int64),
        start_ns=column("start_ns", np.int64),
        end_ns=column("end_ns", np.int64),
        decodes=column("decodes", np.int32),
        prefill_tokens=column("prefill_tokens", np.int32),
        running=column("running", np.int32),
        waiting=column("waiting", np.int32),
        kv_used=column("kv_used", np.int64),
    )


def _scatter(values: dict[int, int], count: int) -> NDArray[np.integer]:
    column = np.zeros(count, np.int64)
    if values:
        column[list(values)] = list(values.values())
    return column
