"""The recorder of steps: one log a replica, and their columns in the end."""

from __future__ import annotations

from array import array
from typing import ClassVar

import numpy as np

from cost_models.shape import CostModel, costs_one_by_one
from simulator.results.columns import DraftColumns, Ints, StepColumns


class Rows:
    """Rows of whole numbers under named columns.

    A row is appended to a list, several times cheaper than a number to each of eight arrays; full lists are packed into
    typed columns.
    """

    def __init__(self, columns: dict[str, type[np.integer]]) -> None:
        self._dtypes = columns
        self.numbers: list[int] = []  # of the rows that are not packed
        self._packed: dict[str, list[Ints]] = {name: [] for name in columns}
        self.packed_rows = 0
        #: Takes the numbers of a row; call `pack` now and then.
        self.write = self.numbers.extend

    def pack(self, least: int = 4096) -> None:
        """Turn the rows so far into columns if there are at least `least` of them."""
        width = len(self._dtypes)
        if len(self.numbers) < least * width or not self.numbers:
            return
        rows = np.frombuffer(array("q", self.numbers), np.int64).reshape(-1, width)
        for at, (name, dtype) in enumerate(self._dtypes.items()):
            self._packed[name].append(rows[:, at].astype(dtype))
        self.packed_rows += len(rows)
        self.numbers.clear()

    def column(self, name: str) -> Ints:
        """All entries of a column; it can be taken once, and is then gone from here."""
        self.pack(least=0)
        pieces = self._packed.pop(name)
        return np.concatenate(pieces) if pieces else np.zeros(0, self._dtypes[name])


class StepLog:
    """Log of the steps of one replica; `completed` counts those that have ended."""

    #: One row a step, written when it is formed.
    COLUMNS: ClassVar[dict[str, type[np.integer]]] = {
        "sched_ns": np.int64,
        "start_ns": np.int64,
        "end_ns": np.int64,
        "decodes": np.int32,
        "prefill_tokens": np.int32,
        "running": np.int32,
        "waiting": np.int32,
        "kv_used": np.int64,
    }
    #: One row a step with both decodes and chunks: its number, what its decodes attend to, and until when the CPU
    #: prepared the step before it. What the step would take without its chunks is found in the end, for all at once.
    MIXED: ClassVar[dict[str, type[np.integer]]] = dict.fromkeys(
        ("step", "context", "window_context", "prepared_ns"), np.int64
    )

    #: One row a step in which drafts are verified or proposed: its number, the drafts, the passes of the drafter after
    #: it, and what they take.
    DRAFTED: ClassVar[dict[str, type[np.integer]]] = dict.fromkeys(
        ("step", "draft_tokens", "proposed", "draft_ns"), np.int64
    )

    def __init__(self, paused: list[int]) -> None:
        self.completed = 0
        self.inserted = 0  # rows behind the step under way, which end with it
        self.paused = paused  # the rows of paused steps, in order; the batch's list
        self._rows, self._mixed, self._drafted = Rows(self.COLUMNS), Rows(self.MIXED), Rows(self.DRAFTED)
        self.write = self._rows.write
        self.mixed = self._mixed.write
        self.drafted = self._drafted.write

    def insert(self, row: int) -> None:
        """Count a row of no length: as completed, or if a step is under way, behind it."""
        if row > self.completed + self.inserted:
            self.inserted += 1
        else:
            self.completed += 1

    @property
    def formed(self) -> int:
        """Steps that have been formed: the number of the next one's row."""
        return self._rows.packed_rows + len(self._rows.numbers) // len(self.COLUMNS)

    def pack(self) -> None:
        """Pack what has come together; to be called now and then."""
        self._rows.pack()
        self._mixed.pack()
        self._drafted.pack()

    def column(self, name: str) -> Ints:
        """The completed steps' entries in a column; it can be taken once, and is then gone from here."""
        return self._rows.column(name)[: self.completed]

    def drafts(self) -> dict[str, Ints]:
        """The completed steps' rows of `DRAFTED`; they can be taken once, and are then gone from here."""
        columns = {name: self._drafted.column(name) for name in self.DRAFTED}
        count = int(np.searchsorted(columns["step"], self.completed))
        return {name: column[:count] for name, column in columns.items()}

    def stalls_ns(
        self, cost: CostModel, drafted: dict[str, Ints], sched_ns: Ints, end_ns: Ints, decodes: Ints
    ) -> tuple[Ints, Ints]:
        """The completed steps with decodes and chunks, and how much earlier each would have ended without its chunks.

        Given are the columns of this replica's steps, and of those with drafts. Without chunks, a step is formed at the
        same moment, starts when the device is free and the CPU has prepared it, and takes what its decodes alone take.
        """
        number, context, window_context, prepared_ns = (self._mixed.column(name) for name in self.MIXED)
        count = int(np.searchsorted(number, self.completed))
        step, prepared_ns = number[:count], prepared_ns[:count]
        alone = decodes[step], context[:count], window_context[:count]
        if len(drafted["step"]):
            device_ns, host_ns = costs_one_by_one(cost, *alone, *_of_steps(drafted, step))
        else:
            device_ns, host_ns = cost.decode_costs(*alone)
        formed_ns = sched_ns[step]
        free_ns = np.maximum(formed_ns, np.where(step > 0, end_ns[step - 1], 0))
        ready_ns = np.where(host_ns > 0, np.maximum(prepared_ns, formed_ns) + host_ns, formed_ns)
        stalls: Ints = end_ns[step] - np.maximum(free_ns, ready_ns) - device_ns
        # Times are whole ns, each operator's rounded by itself: less work may come out 1 ns longer.
        return step, np.maximum(stalls, 0)


def _of_steps(drafted: dict[str, Ints], step: Ints) -> tuple[Ints, Ints]:
    """The drafts of some steps, and the passes after them; 0 where there are none."""
    at = np.minimum(np.searchsorted(drafted["step"], step), len(drafted["step"]) - 1)
    there = drafted["step"][at] == step
    return np.where(there, drafted["draft_tokens"][at], 0), np.where(there, drafted["proposed"][at], 0)


def step_columns(logs: list[StepLog], costs: list[CostModel]) -> tuple[StepColumns, DraftColumns]:
    """The completed steps of all replicas, one after the other, and those of them with drafts; `costs` are the
    replicas' cost models."""
    offsets = np.concatenate([[0], np.cumsum([log.completed for log in logs])]).astype(np.int64)
    columns = {name: np.concatenate([log.column(name) for log in logs]) for name in StepLog.COLUMNS}
    stall_ns = np.zeros(offsets[-1], np.int64)
    drafts = [log.drafts() for log in logs]
    for log, drafted, cost, begin, end in zip(logs, drafts, costs, offsets[:-1], offsets[1:], strict=True):
        own = (columns[name][begin:end] for name in ("sched_ns", "end_ns", "decodes"))
        steps, stalls = log.stalls_ns(cost, drafted, *own)
        stall_ns[begin + steps] = stalls
    paused = [np.array(log.paused, np.int64) for log in logs]
    paused = [rows[rows < log.completed] + offset for rows, log, offset in zip(paused, logs, offsets[:-1], strict=True)]
    draft_columns = DraftColumns(
        step=np.concatenate([rows["step"] + offset for rows, offset in zip(drafts, offsets[:-1], strict=True)]),
        draft_tokens=np.concatenate([rows["draft_tokens"] for rows in drafts]),
        draft_ns=np.concatenate([rows["draft_ns"] for rows in drafts]),
    )
    return StepColumns(offsets=offsets, **columns, stall_ns=stall_ns, paused=np.concatenate(paused)), draft_columns
