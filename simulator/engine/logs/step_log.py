"""The logs of steps, one for each engine core, and their columns at the end."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np

from cost_models.shape import CostModel, DraftedCosts, costs_one_by_one
from simulator.common.disk_arrays import Piece, chunks, release, shared_spool, zeros
from simulator.results.columns import DraftColumns, Ints, StepColumns


class Rows:
    """Rows of integers with named columns.

    A row is appended to a list, several times faster than a number to each of eight arrays; full lists are packed into
    pieces of typed columns, which are in a file if there are many.
    """

    def __init__(self, columns: dict[str, type[np.integer]]) -> None:
        self._dtypes = columns
        self.numbers: list[int] = []  # entries of the rows that are not packed yet
        self._packed: dict[str, list[Piece]] = {name: [] for name in columns}
        self._spool = shared_spool()
        self.packed_rows = 0
        #: Appends a row; `pack` is to be called at intervals.
        self.write = self.numbers.extend

    def pack(self, least: int = 4096) -> None:
        """Turn the rows so far into columns if there are at least `least` of them."""
        width = len(self._dtypes)
        if len(self.numbers) < least * width or not self.numbers:
            return
        rows = np.fromiter(self.numbers, np.int64, len(self.numbers)).reshape(-1, width)
        pieces = [rows[:, at].astype(dtype) for at, dtype in enumerate(self._dtypes.values())]
        for name, piece in zip(self._dtypes, self._spool.keep(pieces), strict=True):
            self._packed[name].append(piece)
        self.packed_rows += len(rows)
        self.numbers.clear()

    def column(self, name: str) -> Ints:
        """Return all entries of a column and remove it from this log."""
        self.pack(least=0)
        column = zeros(self.packed_rows, self._dtypes[name])
        self.move(name, column)
        return column

    def move(self, name: str, column: Ints) -> None:
        """Move the first entries of a column to `column`, as many as it has, and remove all from this log."""
        self.pack(least=0)
        begin = 0
        for piece in self._packed.pop(name):
            entries = self._spool.read(piece)[: len(column) - begin]
            column[begin : begin + len(entries)] = entries
            begin += len(entries)


class StepLog:
    """Log of the steps of one engine core; `completed` is the number of those that have ended."""

    #: Columns with one row for each step, written when it is formed.
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
    #: Columns with one row for each step with decodes and chunks: its number, the keys to which its decodes attend, and
    #: the end of the CPU's preparation of the previous step. Times without chunks are computed at the end, for all.
    MIXED: ClassVar[dict[str, type[np.integer]]] = dict.fromkeys(
        ("step", "context", "window_context", "prepared_ns"), np.int64
    )

    #: Columns with one row for each step that verifies or proposes drafts: its number, the drafts, the passes of the
    #: drafter after it, and their time.
    DRAFTED: ClassVar[dict[str, type[np.integer]]] = dict.fromkeys(
        ("step", "draft_tokens", "proposed", "draft_ns"), np.int64
    )

    def __init__(self, paused: list[int]) -> None:
        self.completed = 0
        self.inserted = 0  # rows after the step in flight, which end with it
        self.paused = paused  # the rows of paused steps, in order; the batch's list
        self._rows, self._mixed, self._drafted = Rows(self.COLUMNS), Rows(self.MIXED), Rows(self.DRAFTED)
        self.write = self._rows.write
        self.mixed = self._mixed.write
        self.drafted = self._drafted.write

    def insert(self, row: int) -> None:
        """Count a row of length 0: as completed, or after the step in flight if there is one."""
        if row > self.completed + self.inserted:
            self.inserted += 1
        else:
            self.completed += 1

    @property
    def formed(self) -> int:
        """Number of steps that have been formed, which is that of the next row."""
        return self._rows.packed_rows + len(self._rows.numbers) // len(self.COLUMNS)

    def pack(self) -> None:
        """Pack the rows so far; to be called at intervals."""
        self._rows.pack()
        self._mixed.pack()
        self._drafted.pack()

    def move(self, name: str, column: Ints) -> None:
        """Move the entries of the completed steps of a column to `column` and remove them from this log."""
        self._rows.move(name, column)

    def drafts(self) -> dict[str, Ints]:
        """Return the `DRAFTED` columns of the completed steps and remove them from this log."""
        columns = {name: self._drafted.column(name) for name in self.DRAFTED}
        count = int(np.searchsorted(columns["step"], self.completed))
        return {name: column[:count] for name, column in columns.items()}

    def write_stalls(self, cost: CostModel, drafted: dict[str, Ints], steps: dict[str, Ints], stall_ns: Ints) -> None:
        """Write the delay of each completed step with decodes and chunks by its chunks, in ns, to `stall_ns`.

        `steps` has the columns of this core's steps, `drafted` those of its steps with drafts. Without chunks, a step
        would be formed at the same time, start when the device is free and the CPU has prepared it, and take the time
        of its decodes alone.
        """
        mixed = {name: self._mixed.column(name) for name in self.MIXED}
        for rows in chunks(int(np.searchsorted(mixed["step"], self.completed))):
            step, context, window_context, prepared_ns = (column[rows] for column in mixed.values())
            alone = steps["decodes"][step], context, window_context
            if len(drafted["step"]):
                work = (*alone, *_of_steps(drafted, step))
                if isinstance(cost, DraftedCosts):
                    device_ns, host_ns = cost.drafted_costs(*work)
                else:
                    device_ns, host_ns = costs_one_by_one(cost, *work)
            else:
                device_ns, host_ns = cost.decode_costs(*alone)
            formed_ns, end_ns = steps["sched_ns"][step], steps["end_ns"]
            free_ns = np.maximum(formed_ns, np.where(step > 0, end_ns[step - 1], 0))
            ready_ns = np.where(host_ns > 0, np.maximum(prepared_ns, formed_ns) + host_ns, formed_ns)
            # The time of each operator is rounded to ns, so that less work may take 1 ns longer.
            stall_ns[step] = np.maximum(end_ns[step] - np.maximum(free_ns, ready_ns) - device_ns, 0)
            release()


def _of_steps(drafted: dict[str, Ints], step: Ints) -> tuple[Ints, Ints]:
    """Return the drafts of some steps, and the passes after them; 0 for steps without drafts."""
    at = np.minimum(np.searchsorted(drafted["step"], step), len(drafted["step"]) - 1)
    there = drafted["step"][at] == step
    return np.where(there, drafted["draft_tokens"][at], 0), np.where(there, drafted["proposed"][at], 0)


def step_columns(logs: list[StepLog], costs: list[CostModel]) -> tuple[StepColumns, DraftColumns]:
    """Return the completed steps of all engine cores, core after core, and those with drafts.

    `costs` are the cost models of the cores.
    """
    offsets = np.concatenate([[0], np.cumsum([log.completed for log in logs])]).astype(np.int64)
    own = [slice(begin, end) for begin, end in pairwise(offsets.tolist())]
    columns = {}
    for name, dtype in StepLog.COLUMNS.items():
        columns[name] = zeros(int(offsets[-1]), dtype)
        for log, rows in zip(logs, own, strict=True):
            log.move(name, columns[name][rows])
        release()
    stall_ns = zeros(int(offsets[-1]), np.int64)
    drafts = [log.drafts() for log in logs]
    for log, drafted, cost, rows in zip(logs, drafts, costs, own, strict=True):
        steps = {name: columns[name][rows] for name in ("sched_ns", "end_ns", "decodes")}
        log.write_stalls(cost, drafted, steps, stall_ns[rows])
    paused = [np.array(log.paused, np.int64) for log in logs]
    paused = [rows[rows < log.completed] + offset for rows, log, offset in zip(paused, logs, offsets[:-1], strict=True)]
    draft_columns = DraftColumns(
        step=np.concatenate([rows["step"] + offset for rows, offset in zip(drafts, offsets[:-1], strict=True)]),
        draft_tokens=np.concatenate([rows["draft_tokens"] for rows in drafts]),
        draft_ns=np.concatenate([rows["draft_ns"] for rows in drafts]),
    )
    return StepColumns(offsets=offsets, **columns, stall_ns=stall_ns, paused=np.concatenate(paused)), draft_columns
