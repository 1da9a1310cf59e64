"""Steps of the explicit batch, and what speculation tells it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cost_models.shape import BatchShape
from simulator.engine.batches.base import Step
from simulator.scheduling import Plan, TrackedSequence

_EMPTY = BatchShape(0, 0)


class Entry(NamedTuple):
    """The work of a step on one sequence: `tokens` on top of `computed`, `drafts` of them drafts.

    `prefill`: the sequence has not computed all that is known of it before this step.
    """

    seq: TrackedSequence
    tokens: int
    computed: int
    drafts: int
    emits: bool
    prefill: bool
    preemptions: int  # of the sequence by then: if there are more at the step's end, its output is stale


class ExplicitStep(Step):
    """A step that also has its work on each sequence, and after its end the tokens that it brought."""

    __slots__ = ("accepted", "context", "emitted", "entries", "passes", "plan", "proposed", "total")

    def __init__(self, index: int, plan: Plan, entries: list[Entry], total: int, context: int) -> None:
        super().__init__(index, _EMPTY, ())
        self.plan = plan
        self.entries = entries
        self.total = total  # tokens
        self.context = context  # the keys that they attend to, as a recording's time law counts them
        self.passes = 0  # of the drafter, after it
        self.emitted: list[tuple[TrackedSequence, int]] = []
        self.accepted: list[tuple[TrackedSequence, int, int]] = []
        self.proposed: list[tuple[TrackedSequence, int]] = []


class Speculator(Protocol):
    """Decides the number of drafts, and which of them are accepted."""

    def length(self, running: int) -> tuple[int, int]:
        """Drafts that each sequence is to get after the step that is formed now, with so many running ones, and the
        passes of the drafter that they take."""

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """The number of the scheduled drafts of a sequence that the step accepts."""

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """The number of drafts proposed, at the end of a synchronous step, for the sequence's next one."""
