"""The totals by step of all decodes of a batch with speculation."""

from __future__ import annotations

import numpy as np

from simulator.engine.batches.draft_course import COLUMNS, Course

#: Number of steps in the table at the start.
_STEPS = 1024


class StepTable:
    """A row a step with the sums over all decodes: allocated blocks, keys, drafts, tokens, keys within the window.

    The rows are of the steps before `end`. Those of steps that have been formed are forgotten now and then.
    """

    __slots__ = ("_first", "_rows", "end")

    def __init__(self) -> None:
        self._rows = np.zeros(COLUMNS * _STEPS, np.int64)
        self._first, self.end = 0, _STEPS

    def row(self, step: int) -> list[int]:
        """Return the sums of a step."""
        at = COLUMNS * (step - self._first)
        sums: list[int] = self._rows[at : at + COLUMNS].tolist()
        return sums

    def entry(self, step: int, column: int) -> int:
        """Return one of the sums of a step."""
        return self._rows.item(COLUMNS * (step - self._first) + column)

    def add(self, course: Course) -> None:
        """Add a decode whose steps have rows."""
        at = COLUMNS * (course.first - self._first)
        rows = course.rows(course.first)
        self._rows[at : at + len(rows)] += rows

    def remove(self, course: Course, step: int) -> None:
        """Remove the steps of a decode from `step` on."""
        rows = course.rows(step)
        at = COLUMNS * (step - self._first)
        self._rows[at : at + len(rows)] -= rows

    def widen(self, step: int, end: int) -> None:
        """Make room for the steps before `end`, and forget those before `step`."""
        kept = self._rows[COLUMNS * (step - self._first) :]
        steps = max(2 * (end - step), _STEPS)
        self._rows = np.zeros(COLUMNS * steps, np.int64)
        self._rows[: len(kept)] = kept
        self._first, self.end = step, step + steps
