"""The O(changes) batch: forming a step costs time for the sequences that change, not for those that go on decoding.

A decoding sequence is an offset against the step counter (`decode_tables`). In a paused step no decode advances, and
none is updated, since the step counter, `step`, does not count such a step. A sequence whose first token comes from a
paused step is treated as if it came from the step before, except for the row of that token. Ranges of steps become
rows, which count all steps, when they are written to the log.

With prefix caching, too, a step allocates the blocks of all decodes together, and evicts their cached content. The
blocks of a sequence, and those of them that are full, are determined when it leaves: only the same request could find
the content that its decode writes, and only after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from cost_models.shape import BatchShape
from simulator.engine.batches.decode_tables import Decode, DecodeTables
from simulator.engine.batches.interface import BatchContext, Step
from simulator.scheduling import STEADY, Plan, SequenceState

#: The constructor of tuples, which takes half the time of that of named tuples; it is called in every step.
_new_tuple = tuple.__new__
_by_admission = attrgetter("order")


class LazyBatch(DecodeTables):
    """Batch of every policy whose plans are changes, without a loop over all sequences in each step."""

    def __init__(self, context: BatchContext) -> None:
        super().__init__(context)
        self._steady = False  # whether the last plan was `STEADY`, and no sequence has joined since
        self._wasted = 0  # number of tokens of the step in flight that are not delivered
        self._withdrawn: set[int] = set()  # requests with such a token
        self._paused_steps = 0  # number of steps formed with all decodes paused
        self._paused_last = self._paused_row = -1  # of the last of these: number of steps formed so far, and its row

    # --- the core's verbs

    def form(self, plan: Plan) -> Step | None:
        self._steady = plan is STEADY
        if plan is STEADY:
            return self._form(plan) if self.decodes else None
        if not plan.chunks and not plan.preempted and (plan.paused or self.decodes == len(plan.held)):
            return None
        for seq in plan.preempted:
            self._preempt(seq)
        if plan.preempted and not self.running and not plan.chunks:
            self.give_up(plan.preempted[-1])
        if plan.paused:
            return self._form_paused(plan)
        return self._form_held(plan) if plan.held else self._form(plan)

    def form_steady(self) -> Step | None:
        if not self._steady or self.waiting or self.prefilling or not self.decodes:
            return None
        pool, lacking = self.pool, self.decode_blocks()
        if lacking > pool.free:
            return None
        pool.take(lacking)
        return self._form(STEADY)

    def _form(self, plan: Plan) -> Step:
        """Form a step of all decodes and of the plan's chunks."""
        step = self.step
        decodes = self.decodes
        context = self._context = self._context + decodes
        window_context = 0 if self._windows is None else self._windows.advance(step)
        self.step = step + 1
        ending = self._ending.pop(step, None)
        if ending is not None:
            self._leave_early(ending)
        if plan is STEADY:
            shape = (decodes, context, window_context, (), 0, decodes, 0, 0)
            return Step(step, _new_tuple(BatchShape, shape), ending or ())
        return self._form_chunks(plan, step, (decodes, context, window_context), ending or [], -1)

    def complete(self, step: Step) -> Sequence[SequenceState]:
        self.completed += 1
        self.known_tokens += step.shape.sampled - self._wasted
        self._wasted = 0
        finished = step.ending
        if self._withdrawn:
            finished = [seq for seq in finished if seq.index not in self._withdrawn]
            self._withdrawn.clear()
        if len(finished) > 1:
            finished = sorted(finished, key=_by_admission)
        for seq in finished:
            self._finish(seq)
        return finished

    def join(self, seq: SequenceState) -> None:
        self._steady = False
        self.enter(seq)
        # Its next step computes a known token, which with blocks of one token has no block yet.
        if self._prefixes is not None:
            self.pool.register(seq, min(seq.target, seq.blocks * self.pool.block_size))
        self._running[seq.index] = seq
        self.running += 1
        remaining = self._setup.outputs[seq.index] - (seq.target - seq.prompt_tokens)
        decode = Decode(seq.computed - self.step, self.step, self.step + remaining - 1, self.foreseen(seq), -1)
        self._decoding[seq.index] = decode
        self._ending.setdefault(decode.last, []).append(seq)
        seq.decoding = True
        self._join(seq, decode)

    def withdraw(self, seq: SequenceState) -> int:
        decode = self._decoding.get(seq.index)
        delivered = seq.target - seq.prompt_tokens if decode is None else self._break_off(seq, decode)
        self.depart(seq, delivered)
        if seq.index in self.parked:
            del self.parked[seq.index]
        elif self._running.pop(seq.index, None) is None:
            self.waiting.remove(seq)
        else:
            self.running -= 1
            if decode is None:
                self.prefilling.remove(seq)
            self.pool.retire(seq)
        return delivered

    def _break_off(self, seq: SequenceState, decode: Decode) -> int:
        """End the decode of a withdrawn sequence: log the tokens of ended steps, and drop that of a step in flight.
        Return the number of output tokens of the request so far."""
        if seq.decoding:
            self._leave(seq)
            self._settle(seq)
            seq.decoding = False
        if decode.last >= self.step:
            self._unlist(seq, decode.last)
        ended, paused = self._ended_steps()
        got = max(0, min(ended, decode.last + 1) - decode.first)
        under_way = decode.first + got <= min(decode.last, self.step - 1)
        if paused and decode.paused_row == self._paused_row and got:
            got, under_way = 0, True  # its first token is that of the paused step in flight
        if got:
            self._record(seq.index, decode, decode.first + got - 1)
        if under_way:
            self._wasted += 1
            self._withdrawn.add(seq.index)
        del self._decoding[seq.index]
        return self._setup.outputs[seq.index] - (decode.last - decode.first + 1) + got

    def _ended_steps(self) -> tuple[int, bool]:
        """Return the number of ended steps without paused ones, and whether a paused one is in flight; at most one step
        is in flight."""
        formed = self.step + self._paused_steps
        if formed == self.completed:
            return self.step, False
        paused = self._paused_last == formed
        return (self.step, True) if paused else (self.step - 1, False)

    def skip_row(self) -> int:
        row = self.step + len(self.paused)
        self.paused.append(row)
        self._pauses.append(self.step)
        return row

    def close(self) -> None:
        for index, decode in self._decoding.items():
            self._record(index, decode, decode.last)

    def check(self) -> None:
        self.pool.check([*self.oldest_first(), *self.outside.values()])
        assert all(seq.blocks >= self.pool.blocks_for(seq.computed) for seq in self._running.values())
        assert self.running == len(self._running)
        sequences = [seq for seq in self._running.values() if seq.decoding]
        assert self.decodes == len(sequences) == sum(self._phases)
        assert self._context == sum(seq.computed for seq in sequences)
        if self._windows is not None:
            assert self._windows.context == sum(min(seq.computed, self.window) for seq in sequences)

    # --- forming a step

    def _form_chunks(
        self, plan: Plan, step: int, totals: tuple[int, int, int], ending: list[SequenceState], paused_row: int
    ) -> Step:
        """Form a step of a plan's chunks and decodes with these `totals`: their number, context and windows."""
        new_requests, (decodes, context, window_context) = 0, totals
        for seq in plan.admitted:
            self.admit(seq)
            self._running[seq.index] = seq
            self.running += 1
            self.prefilling.append(seq)
            new_requests += not seq.preemptions
        sampled = decodes
        shapes = []
        for seq, tokens in plan.chunks:
            shapes.append((tokens, seq.computed))
            seq.computed += tokens
            if seq.computed == seq.target:
                sampled += 1
                self.prefilling.remove(seq)
                self._start_decoding(seq, ending, paused_row)
        shape = (decodes, context, window_context, tuple(shapes), new_requests, sampled, 0, 0)
        return Step(step, _new_tuple(BatchShape, shape), ending)

    def _form_paused(self, plan: Plan) -> Step:
        """Form a step in which no decode advances: it has a row of the log, but the step counter does not count it."""
        row = self._paused_row = self.skip_row()
        self._paused_steps += 1
        self._paused_last = self.step + self._paused_steps
        return self._form_chunks(plan, self.step, (0, 0, 0), [], row)

    def _form_held(self, plan: Plan) -> Step:
        """Form a step in which some decodes do not advance: their tables are shifted by one step."""
        for seq in plan.held:
            self._leave(seq)
            decode = self._decoding[seq.index]
            if decode.last >= self.step:  # else its last token is in flight, which the scheduler does not know yet
                self._postpone(seq, decode)
        formed = self._form(plan)
        for seq in plan.held:
            decode = self._decoding[seq.index]
            decode.base -= 1
            self._join(seq, decode)
        return formed

    def _postpone(self, seq: SequenceState, decode: Decode) -> None:
        """End the range of tokens before the next step, and start a new one after it."""
        self._unlist(seq, decode.last)
        if self.step > decode.first:
            self._record(seq.index, decode, self.step - 1)
        decode.first, decode.last, decode.paused_row = self.step + 1, decode.last + 1, -1
        self._ending.setdefault(decode.last, []).append(seq)

    def _start_decoding(self, seq: SequenceState, ending: list[SequenceState], paused_row: int) -> None:
        """Start the decode of a sequence whose last chunk was just formed: it and each later step produce a token."""
        step = self.step - 1
        remaining = self._setup.outputs[seq.index] - (seq.target - seq.prompt_tokens)
        decode = Decode(seq.computed - step - 1, step, step + remaining - 1, self.foreseen(seq), paused_row)
        self._decoding[seq.index] = decode
        if remaining == 1:
            ending.append(seq)
            if decode.leaves_early:
                return
        else:
            listed = self._ending.get(decode.last)
            if listed is None:
                self._ending[decode.last] = [seq]
            else:
                listed.append(seq)
        seq.decoding = True
        self._join(seq, decode)

    def _leave_early(self, ending: list[SequenceState]) -> None:
        for seq in ending:
            if self._decoding[seq.index].leaves_early:
                self._leave(seq)
                self._settle(seq)
                seq.decoding = False
                seq.target = seq.computed  # no token is left to compute; the last one is in flight

    def _preempt(self, seq: SequenceState) -> None:
        """Move `seq`, whose blocks are released, from the running list to the waiting queue."""
        del self._running[seq.index]
        self.running -= 1
        if seq.decoding:
            self._leave(seq)
        decode = self._decoding.get(seq.index)
        if decode is None:
            self.prefilling.remove(seq)
        elif decode.last >= self.step:  # else all of its tokens are in flight: it will finish while it waits
            self._unlist(seq, decode.last)
            if self.step > decode.first:
                self._record(seq.index, decode, self.step - 1)
            del self._decoding[seq.index]
        self.requeue(seq)

    # --- completing a step

    def _finish(self, seq: SequenceState) -> None:
        decode = self._decoding[seq.index]
        tokens = seq.prompt_tokens + self._setup.outputs[seq.index] - 1  # without the last one, which is not computed
        if seq.decoding:
            # The scheduler did not know the end: a step formed since then computes a token that is not delivered.
            self._leave(seq)
            self._settle(seq)
            seq.decoding = False
            self._wasted += seq.computed - tokens
        del self._decoding[seq.index]
        if self._pauses:
            self._record(seq.index, decode, decode.last)
        else:  # the same without the call, since this runs for every request
            self._setup.log.segment(seq.index, self._setup.number, decode.first, decode.last)
        self.depart(seq, self._setup.outputs[seq.index])
        if self._running.pop(seq.index, None) is None:
            self.waiting.remove(seq)  # it was preempted while its last token was in flight, and holds no blocks
        else:
            self.running -= 1
            self.pool.register(seq, tokens)
            self.retire(seq)
