"""The explicit batch: a loop over the sequences of each step, for every policy and every feature.

It counts tokens as vLLM's scheduler does: `target` exceeds `known` by the tokens of steps in flight, rejected drafts
are subtracted from `computed`, and tokens in flight at a preemption are still delivered, but do not change the other
counts. It is the reference in tests of the lazy batches, and records steps.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

from simulator.engine.batches.base import BatchBase
from simulator.engine.batches.explicit_step import (
    Entry,
    ExplicitStep,
    Speculator,
    by_admission,
    next_unpaused,
    work_of,
)
from simulator.engine.batches.interface import BatchContext
from simulator.scheduling import Plan, SequenceState, TrackedSequence

_entry = tuple.__new__  # a third of the time of calling the class

Work = Sequence[tuple[TrackedSequence, int]]


class ExplicitBatch(BatchBase):
    """The batch that loops over its sequences. `order` is the running list, in order of admission."""

    waiting: deque[TrackedSequence]  # type: ignore[assignment]
    decodes = None  # no totals: policies go through the sequences

    def __init__(self, context: BatchContext) -> None:
        super().__init__(context)
        self.order: list[TrackedSequence] = []
        self.speculator: Speculator | None = None
        # Whether full blocks are registered when tokens are delivered, in place of when they are scheduled.
        self._late_blocks = context.depth == 2
        self._registers = True  # whether the batch registers the blocks of decodes; with `Plan.work` the policy does

    def speculate(self, speculator: Speculator) -> None:
        """Let steps have drafts, and produce several tokens, from the first step on."""
        self.speculator = speculator
        self._late_blocks = True

    # --- the policy's view

    @property
    def running(self) -> int:
        return len(self.order)

    @property
    def unfinished(self) -> int:
        return len(self.order) + len(self.waiting)

    @property
    def prefilling_last(self) -> bool:
        raise AssertionError("the explicit batch keeps no totals")

    @property
    def decode_tokens(self) -> int:
        raise AssertionError("the explicit batch keeps no totals")

    @property
    def decode_steps(self) -> int:
        return self.step - len(self.paused)

    def decode_blocks(self) -> int:
        raise AssertionError("the explicit batch keeps no totals")

    def oldest_first(self) -> Iterator[SequenceState]:
        if self._prefixes is not None and self._registers:
            for seq in self.order:
                if seq.decoding:
                    self._prefixes.register(seq, seq.computed - seq.in_flight)
        return iter(self.order)

    # --- the core's verbs

    def join(self, seq: TrackedSequence) -> None:
        self.enter(seq)
        self.order.append(seq)
        seq.decoding = True

    def skip_row(self) -> int:
        row = self.step
        self.paused.append(row)
        self.step += 1
        return row

    def form(self, plan: Plan) -> ExplicitStep | None:
        step = self.advance(plan)
        if step is not None:
            step.shape = step.shape_with(self.window)
        return step

    def advance(self, plan: Plan) -> ExplicitStep | None:
        """Apply a plan and return its step as `form` does, but without its shape."""
        for seq in plan.preempted:
            self._preempt(cast(TrackedSequence, seq))
        for admitted in cast("Sequence[TrackedSequence]", plan.admitted):
            self._take_in(admitted)
        self._registers = plan.work is None
        work = cast(Work, work_of(plan, self.order) if plan.work is None else plan.work)
        if not work:
            if not plan.preempted:
                return None
            if not self.order:
                self.give_up(plan.preempted[-1])
        if plan.paused:
            self.paused.append(self.step)
        entries: list[Entry] = []
        total = context = length = passes = 0
        if self.speculator is not None:
            length, passes = self.speculator.length(len(self.order))
        placeholders = length if self.depth == 2 else 0
        for each, tokens in work:
            computed, target, prefill = each.computed, each.target, not each.decoding
            each.computed = end = computed + tokens
            each.in_flight += tokens
            total += tokens
            context += end
            if end < target:
                if not prefill:
                    each.decoding = False
                    insort(self.prefilling, each, key=by_admission)
                entries.append(_entry(Entry, (each, tokens, computed, 0, False, prefill, each.preemptions)))
                continue
            if prefill:
                each.decoding = True
                self.prefilling.remove(each)
            each.target = end + 1
            each.drafts = placeholders
            entries.append(_entry(Entry, (each, tokens, computed, end - target, True, prefill, each.preemptions)))
        step = ExplicitStep(self.step, plan, entries, total, context)
        step.passes = passes
        self.step += 1
        return step

    def complete(self, step: ExplicitStep) -> Sequence[TrackedSequence]:
        # Drafts of a sequence that was just admitted are `padded`, output of one that was preempted since is `stale`.
        self.completed += 1
        finished, delivered, number = [], 0, step.index
        outputs, paused, speculator = self._setup.outputs, self.paused, self.speculator
        late = self._prefixes if self._late_blocks and not self._registers else None
        proposer = speculator if self.depth == 1 else None
        for seq, tokens, _, drafts, emits, padded, preemptions in step.entries:
            if seq.finished:
                continue
            stale = preemptions != seq.preemptions
            if not stale:
                seq.in_flight -= tokens
            if not emits:
                continue
            left = seq.prompt_tokens + outputs[seq.index] - seq.known
            got = 1
            if drafts and speculator is not None:
                accepted = 0 if padded else speculator.accepted(number, seq, drafts)
                step.accepted.append((seq, drafts, accepted))
                got = accepted + 1 if accepted < left else left
                if not stale:  # subtract the rejected drafts
                    seq.computed -= drafts - accepted
                    seq.target -= drafts + 1 - got
            seq.known += got
            delivered += got
            if stale:
                seq.target = seq.known
            elif late is not None:
                late.register(seq, min(seq.computed - seq.in_flight, seq.known - 1))
            step.emitted.append((seq, got))
            if seq.last_step != number - 1 and (not paused or number != next_unpaused(paused, seq.last_step)):
                self._record(seq)
                seq.first_step = number
            seq.last_step = number
            if speculator is not None:
                seq.events.append(got)
            if got == left:
                self._finish(seq)
                finished.append(seq)
            elif proposer is not None:
                seq.drafts = proposer.proposed(number, seq)
                step.proposed.append((seq, seq.drafts))
        self.known_tokens += delivered
        step.ending = finished
        return finished

    def close(self) -> None:
        parked = cast("list[TrackedSequence]", [*self.parked.values()])
        for seq in sorted([*self.order, *self.waiting, *parked], key=lambda seq: seq.index):
            self._record(seq)

    def check(self) -> None:
        self.pool.check([*self.order, *self.waiting, *self.outside.values()])
        assert all(seq.blocks >= self.pool.blocks_for(seq.computed) for seq in self.order)
        if self._prefixes is not None:  # no rejected draft is found
            assert all(seq.registered * self.pool.block_size <= seq.known for seq in self.order)

    def withdraw(self, seq: TrackedSequence) -> int:
        seq.finished = True  # drops the tokens of steps in flight
        self._record(seq)
        delivered = seq.known - seq.prompt_tokens
        self.depart(seq, delivered)
        if self.parked.pop(seq.index, None) is None:
            if seq in self.waiting:
                self.waiting.remove(seq)
            else:
                self._leave(seq)
                self.pool.retire(seq)
        return delivered

    # --- forming a step

    def _take_in(self, seq: TrackedSequence) -> None:
        self.admit(seq)
        self.order.append(seq)
        self.prefilling.append(seq)

    def _leave(self, seq: TrackedSequence) -> None:
        """Remove a sequence from the running list."""
        self.order.remove(seq)
        if not seq.decoding:
            self.prefilling.remove(seq)

    def _preempt(self, seq: TrackedSequence) -> None:
        self._leave(seq)
        seq.drafts = seq.in_flight = 0
        seq.target = seq.known
        self.requeue(seq)

    # --- completing a step

    def _finish(self, seq: TrackedSequence) -> None:
        seq.finished = True
        self._record(seq)
        self.depart(seq, self._setup.outputs[seq.index])
        if seq not in self.order:  # it was preempted while its last token was in flight, and holds no blocks
            self.waiting.remove(seq)
            return
        self._leave(seq)
        if self._registers:
            self.pool.register(seq, seq.known - 1)
        seq.target, seq.drafts = seq.computed, 0  # no token is left to compute
        self.retire(seq)

    def _record(self, seq: TrackedSequence) -> None:
        """Log the current range of steps that produced a token, if there is one."""
        if seq.first_step >= 0:
            self._setup.log.segment(seq.index, self.number, seq.first_step, seq.last_step)
            seq.first_step = -2
            if self.speculator is not None:
                self._setup.log.events(bytes(seq.events))
                seq.events.clear()
