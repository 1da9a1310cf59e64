"""Steps of the explicit batch, and the interface of speculation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cost_models.shape import BatchShape
from simulator.engine.batches.interface import Step
from simulator.scheduling import Plan, SequenceState, TrackedSequence

_EMPTY = BatchShape(0, 0)


class Entry(NamedTuple):
    """Work of a step on one sequence: `tokens` after the `computed` ones, of which `drafts` are drafts.

    `prefill`: the sequence has known tokens that are not computed before this step.
    """

    seq: TrackedSequence
    tokens: int
    computed: int
    drafts: int
    emits: bool
    prefill: bool
    preemptions: int  # of the sequence so far: if there are more at the step's end, its output is stale


class ExplicitStep(Step):
    """A step with its work on each sequence, and after its end the tokens that it delivered."""

    __slots__ = ("accepted", "context", "emitted", "entries", "passes", "plan", "proposed", "total")

    def __init__(self, index: int, plan: Plan, entries: list[Entry], total: int, context: int) -> None:
        super().__init__(index, _EMPTY, ())
        self.plan = plan
        self.entries = entries
        self.total = total  # number of tokens
        self.context = context  # number of keys to which they attend, as the time law of recordings counts them
        self.passes = 0  # number of passes of the drafter after it
        self.emitted: list[tuple[TrackedSequence, int]] = []
        self.accepted: list[tuple[TrackedSequence, int, int]] = []
        self.proposed: list[tuple[TrackedSequence, int]] = []

    def shape_with(self, window: int) -> BatchShape:
        """Return the shape of the step for a model with that sliding window.

        The drafts of a decode attend to its keys and, causally, to each other: the keys are read once for all of them.
        """
        contexts, chunks, sampled, verified = [], [], 0, 0
        for _, tokens, computed, drafts, emits, prefill, _ in self.entries:
            sampled += emits
            if drafts or (tokens == 1 and not prefill):  # a prompt padded with drafts is computed as a decode
                contexts.append(computed + tokens)
                verified += drafts
            else:
                chunks.append((tokens, computed))
        return BatchShape(
            decodes=len(contexts),
            decode_context=sum(contexts),
            decode_window_context=sum([min(context, window) for context in contexts]) if window else 0,
            chunks=tuple(chunks),
            new_requests=sum(not seq.preemptions for seq in self.plan.admitted),
            sampled=sampled,
            draft_tokens=verified,
            proposed=self.passes if sampled else 0,
        )


def work_of(plan: Plan, order: Sequence[SequenceState]) -> list[tuple[SequenceState, int]]:
    """Return the work of a plan of changes, in the order of admission; `order` is the running list after them."""
    chunks = {seq.index: tokens for seq, tokens in plan.chunks}
    held = {seq.index for seq in plan.held}
    work: list[tuple[SequenceState, int]] = []
    for seq in order:
        tokens = chunks.get(seq.index, 0)
        if seq.decoding and not plan.paused and seq.index not in held:
            tokens = seq.todo
        if tokens:
            work.append((seq, tokens))
    return work


class Speculator(Protocol):
    """Source of the number of drafts, and of the number that is accepted."""

    def length(self, running: int) -> tuple[int, int]:
        """Return the number of drafts of each sequence after the step that is formed now, and the drafter's passes.

        `running` is the number of running sequences.
        """

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """Return the number of a sequence's scheduled drafts that the step accepts."""

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """Return the number of drafts proposed, at the end of a synchronous step, for the sequence's next one."""


def by_admission(seq: SequenceState) -> int:
    """Return the sort key of a sequence by admission."""
    return seq.order


def next_unpaused(paused: list[int], step: int) -> int:
    """Return the next step after `step` that is not among the `paused` ones, which are in order."""
    step += 1
    for row in paused[bisect_left(paused, step) :]:
        if row != step:
            break
        step += 1
    return step
