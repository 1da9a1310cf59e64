"""Measurement of grids of shapes within a time budget: timings, failures with reasons, and shapes left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cost_models.calibration.schema import format_row
from cost_models.errors import CostModelError
from cost_models.profiling.grid import Shape
from cost_models.profiling.timing import KernelError, Timer, measure

#: Shares of the time budget. The rest of an operator's share goes to the operators after it, so the largest grid is
#: last. Operators whose kernels are compiled on first use have larger shares than their grids need.
SHARES: Mapping[str, float] = {
    "p2p": 1,
    "all_reduce": 1,
    "elementwise": 2,
    "moe": 5,
    "decode_attention": 2,
    "prefill_attention": 4,
    "gemm": 8,
}


class Kernel(NamedTuple):
    """A kernel with its arguments prepared, and its library and function, for the `source` column."""

    call: Callable[[], object]
    source: str


#: Function that prepares the kernel of a shape. Raises KernelError, or an error of its library, if there is no kernel.
Factory = Callable[[Shape], Kernel]


@dataclass(slots=True)
class Failure:
    """Shapes that failed in the same way: the reason, the first of them, and their number."""

    reason: str
    example: str
    count: int = 0


@dataclass(slots=True)
class Outcome:
    """Outcome of an operator's shapes: each is measured, failed, or left out for lack of time."""

    shapes: int
    measured: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Number of shapes without a kernel or a timing."""
        return sum(failure.count for failure in self.failures.values())

    @property
    def left_out(self) -> int:
        """Number of shapes left out for lack of time."""
        return self.shapes - self.measured - self.failed


class Campaign:
    """Measurements of several operators on one GPU.

    `rows` are the cells of the CSV, as texts by column; `outcomes` has the outcome of each operator. Both are also up
    to date after an interrupt.
    """

    def __init__(self, gpu: str, factories: Mapping[str, Factory], timer: Timer) -> None:
        self.rows: list[dict[str, str]] = []
        self.outcomes: dict[str, Outcome] = {}
        self._gpu = gpu
        self._factories = factories
        self._timer = timer

    def run(self, grids: Mapping[str, Sequence[Shape]], budget_s: float, tell: Callable[[str], None]) -> None:
        """Measure each operator's grid, in the order of SHARES, and call `tell` for each one that is done.

        An operator gets its share, among the remaining operators, of the rest of the budget. Shapes that would start
        after this time are left out; a shape that has started is finished.
        """
        self.outcomes.update({operator: Outcome(len(grids[operator])) for operator in SHARES if operator in grids})
        end = self._timer.now() + budget_s
        waiting = list(self.outcomes)
        while waiting:
            share = SHARES[waiting[0]] / sum(SHARES[operator] for operator in waiting)
            operator = waiting.pop(0)
            self._run_operator(grids[operator], self.outcomes[operator], share * (end - self._timer.now()))
            tell(summary(operator, self.outcomes[operator]))

    def _run_operator(self, shapes: Sequence[Shape], outcome: Outcome, budget_s: float) -> None:
        start = self._timer.now()
        for shape in shapes:
            if outcome.seconds >= budget_s:
                return
            self._try(shape, outcome)
            outcome.seconds = self._timer.now() - start

    def _try(self, shape: Shape, outcome: Outcome) -> None:
        """Measure a shape. All errors of a library are recorded, since its other kernels may work."""
        try:
            kernel = self._factories[shape.operator](shape)
            latency_us = measure(kernel.call, self._timer)
            cells = {"gpu": self._gpu, "operator": shape.operator, **shape.cells}
            self.rows.append(format_row({**cells, "latency_us": latency_us, "source": kernel.source}))
            outcome.measured += 1
        except Exception as error:
            reason = describe(error)
            # Messages about memory and sizes differ in their numbers only.
            kind = re.sub(r"\d+", "#", reason)
            outcome.failures.setdefault(kind, Failure(reason, str(shape))).count += 1


def describe(error: Exception) -> str:
    """Return one line about an error, with its type unless its text is written for users."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else "no message"
    return text if isinstance(error, KernelError | CostModelError) else f"{type(error).__name__}: {text}"


def summary(operator: str, outcome: Outcome) -> str:
    """Return the outcome of an operator's shapes, for a user: a line, and one more for each kind of failure."""
    lines = [f"{operator}: {outcome.measured} of {outcome.shapes} shapes in {outcome.seconds:.0f} s"]
    if outcome.left_out:
        lines[0] += f"; {outcome.left_out} finer ones left out when its time was up"
    for failure in outcome.failures.values():
        lines.append(f"  {failure.count} failed, the first at {failure.example}: {failure.reason}")
    return "\n".join(lines)
