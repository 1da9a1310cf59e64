"""Measuring grids of shapes within a time budget: what was timed, what failed and why, and what was left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cost_models.calibration.schema import format_row
from cost_models.errors import CostModelError
from cost_models.profiling.grid import Shape
from cost_models.profiling.timing import KernelError, Timer, measure

#: Shares of the time budget. What an operator leaves over goes to those after it, so the largest grid comes last.
#: Those whose kernels are compiled on first use have more than their grids alone would need.
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
    """A kernel with its arguments in place, and what it is: library and function, for the `source` column."""

    call: Callable[[], object]
    source: str


#: Prepares the kernel of a shape. Raises KernelError, or what its library raises, if it cannot be had.
Factory = Callable[[Shape], Kernel]


@dataclass(slots=True)
class Failure:
    """Shapes that failed in the same way: why the first did, which that was, and how many there are."""

    reason: str
    example: str
    count: int = 0


@dataclass(slots=True)
class Outcome:
    """Outcome of an operator's shapes: all of them are measured, failed, or left out for want of time."""

    shapes: int
    measured: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Shapes whose kernel could not be had or timed."""
        return sum(failure.count for failure in self.failures.values())

    @property
    def left_out(self) -> int:
        """Shapes that the time did not suffice for."""
        return self.shapes - self.measured - self.failed


class Campaign:
    """Measurements of several operators on one GPU.

    `rows` are the cells of the CSV, as texts by column; `outcomes` say what became of each operator. Both are up to
    date after an interrupt, too.
    """

    def __init__(self, gpu: str, factories: Mapping[str, Factory], timer: Timer) -> None:
        self.rows: list[dict[str, str]] = []
        self.outcomes: dict[str, Outcome] = {}
        self._gpu = gpu
        self._factories = factories
        self._timer = timer

    def run(self, grids: Mapping[str, Sequence[Shape]], budget_s: float, tell: Callable[[str], None]) -> None:
        """Measure each operator's grid, in the order of SHARES, and `tell` of each that is done.

        Of what is left of the budget, an operator gets its share among those still to come. It is cut off before the
        first shape that would start later; the shape under way is finished.
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
        """Measure a shape. Whatever a library raises is noted, since others of its kernels may well work."""
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
    """One line about an error, with its type unless its text is made for users."""
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
