"""The O(changes) batch: a decoding sequence is an offset against the step counter, and nobody touches it until it ends.

A sequence that starts to decode before step s with c computed tokens has computed c + (t - s) before step t, so that
`base` = c - s is all there is to know: it lacks a block in step t if base + t is a multiple of the block size, which a
table of phases counts for all sequences at once; its last token comes from a step known from the start, where a
table by step finds it; and the total context grows by the number of decodes a step. Its tokens are a range of steps.

In a paused step all decodes stand still, and nothing must be touched for it: the step counter, `step`, leaves it out. A
sequence that gets its first token from a paused step is as one that got it from the step before, but for that token's
own row. Ranges of steps become rows, which count all steps, when they are written to the log.

With prefix caching, too, a step takes the blocks of all decodes together, and pushes out what was to be found in them.
Which of them a sequence has, and which are full, is settled when it leaves: what a decode writes only its own request
could find again, and that only after a preemption.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from cost_models.shape import BatchShape
from simulator.engine.batches.base import BatchBase, Step
from simulator.engine.logs.request_log import RequestLog
from simulator.memory import BlockPool
from simulator.scheduling import STEADY, Plan, Requeue, SequenceState

_new_tuple = tuple.__new__
_by_admission = attrgetter("order")


class _Decode:
    """The decode of one sequence: `computed` is `base` + step; its tokens come from steps `first` to `last`.

    `leaves_early`: the scheduler foresees the last step, and the sequence leaves the decoding set when it is formed.
    `paused_row`: where the first token comes from a paused step, the row of that step; else -1.
    """

    __slots__ = ("base", "first", "last", "leaves_early", "paused_row")

    def __init__(self, base: int, first: int, last: int, leaves_early: bool, paused_row: int = -1) -> None:
        self.base = base
        self.first = first
        self.last = last
        self.leaves_early = leaves_early
        self.paused_row = paused_row


class LazyBatch(BatchBase):
    """See the module's text. Carries everything but what needs a look at each sequence in each step."""

    def __init__(
        self,
        number: int,
        pool: BlockPool,
        log: RequestLog,
        outputs: Sequence[int],
        depth: int,
        window: int,
        requeue: Requeue = "front",
    ) -> None:
        super().__init__(number, pool, log, outputs, depth, window, requeue)
        self.decodes = 0
        self._running: dict[int, SequenceState] = {}  # by request, in order of admission
        self._decoding: dict[int, _Decode] = {}
        self._ending: dict[int, list[SequenceState]] = {}  # by step: who gets a last token from it
        self._phases = [0] * pool.block_size
        self._lacking = [0] * pool.block_size if pool.reserves else self._phases  # blocks that steps ask for, by phase
        self._block_size = pool.block_size
        self._context = 0  # computed tokens of all decodes
        self._window_context = 0  # the same, each at most the window
        self._growing = 0  # decodes whose window is not full yet
        self._full_at: dict[int, int] = {}  # by step: decodes whose window is full before it
        self._wasted = 0  # tokens of the step under way that nobody will see
        self._pauses: list[int] = []  # for each paused step, the number of the step after it

    # --- the policy's view

    @property
    def prefilling_last(self) -> bool:
        newest = reversed(self._running.values())
        return all(next(newest) is seq for seq in reversed(self.prefilling))

    @property
    def decode_tokens(self) -> int:
        return self.decodes

    @property
    def decode_steps(self) -> int:
        return self.step

    def decode_blocks(self) -> int:
        return self._lacking[self.step % self._block_size]

    def oldest_first(self) -> Iterator[SequenceState]:
        for seq in self._running.values():
            if seq.decoding:
                self._settle(seq)
            yield seq

    # --- coasting

    def next_decodes(self) -> BatchShape:
        """The next step's shape if everybody decodes and nothing else happens."""
        context = self._context + self.decodes
        return BatchShape(self.decodes, context, self._window_context, (), 0, self.decodes)

    def lacking_blocks(self, steps: int) -> list[int]:
        """Blocks that the decodes lack in each of the next steps, if nothing else happens in them."""
        lacking, size, first = self._lacking, self._block_size, self.step
        return [lacking[step % size] for step in range(first, first + steps)]

    def quiet_steps(self, most: int) -> int:
        """How many of the next `most` steps only decode: nothing waits, prefills or ends, and the blocks suffice."""
        first, ending, lacking, size = self.step, self._ending, self._lacking, self._block_size
        if self.waiting or first in ending or self.prefilling or self._growing or not self.decodes:
            return 0
        free = self.pool.free
        for step in range(first, first + most):
            free -= lacking[step % size]
            if free < 0 or step in ending:
                return step - first
        return most

    def coast(self, steps: int) -> Step:
        """Form and complete that many quiet steps; return the last one."""
        self.pool.take(sum(self.lacking_blocks(steps)))
        self.step += steps
        self.completed += steps
        self._context += steps * self.decodes
        self.unfinished_output_tokens += steps * self.decodes
        shape = BatchShape(self.decodes, self._context, self._window_context, (), 0, self.decodes)
        return Step(self.step - 1, shape, ())

    # --- the replica's verbs

    def form(self, plan: Plan) -> Step | None:
        if plan is STEADY:
            if not self.decodes:
                return None
        elif not plan.chunks and not plan.preempted and (plan.paused or self.decodes == len(plan.held)):
            return None
        else:
            for seq in plan.preempted:
                self._preempt(seq)
            if plan.paused:
                return self._form_paused(plan)
            if plan.held:
                return self._form_held(plan)
        return self._form(plan)

    def _form(self, plan: Plan) -> Step:
        """Form a step of everybody who is counted among the decodes, and of the plan's chunks."""
        step = self.step
        decodes = self.decodes
        window_context = 0
        if self.window:
            window_context = self._window_context = self._window_context + self._growing
        context = self._context = self._context + decodes
        self.step = step + 1
        if self._full_at:
            self._growing -= self._full_at.pop(step + 1, 0)
        ending = self._ending.pop(step, None)
        if ending is not None:
            self._leave_early(ending)
        if plan is STEADY:
            # The tuple's own constructor: half the price of the named one's, in every step.
            return Step(
                step, _new_tuple(BatchShape, (decodes, context, window_context, (), 0, decodes, 0, 0)), ending or ()
            )
        return self._form_chunks(plan, step, decodes, context, window_context, ending or [], -1)

    def complete(self, step: Step) -> Sequence[SequenceState]:
        self.completed += 1
        self.unfinished_output_tokens += step.shape.sampled - self._wasted
        self._wasted = 0
        finished = step.ending
        if len(finished) > 1:
            finished = sorted(finished, key=_by_admission)
        for seq in finished:
            self._finish(seq)
        return finished

    def join(self, seq: SequenceState) -> None:
        self.enter(seq)
        # Its next step computes a token that is known; with blocks of one token it has no place for it yet.
        self.pool.register(seq, min(seq.target, seq.blocks * self._block_size))
        self._running[seq.index] = seq
        remaining = self._outputs[seq.index] - (seq.target - seq.prompt_tokens)
        decode = _Decode(seq.computed - self.step, self.step, self.step + remaining - 1, self.foreseen(seq), -1)
        self._decoding[seq.index] = decode
        self._ending.setdefault(decode.last, []).append(seq)
        seq.decoding = True
        self._join(seq, decode)

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
        sequences = [seq for seq in self._running.values() if seq.decoding]
        assert self.decodes == len(sequences) == sum(self._phases)
        assert self._context == sum(seq.computed for seq in sequences)
        if self.window:
            assert self._window_context == sum(min(seq.computed, self.window) for seq in sequences)

    # --- forming a step

    def _form_chunks(
        self,
        plan: Plan,
        step: int,
        decodes: int,
        context: int,
        window_context: int,
        ending: list[SequenceState],
        paused_row: int,
    ) -> Step:
        new_requests = 0
        for seq in plan.admitted:
            self.admit(seq)
            self._running[seq.index] = seq
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
        return Step(step, BatchShape(decodes, context, window_context, tuple(shapes), new_requests, sampled), ending)

    def _form_paused(self, plan: Plan) -> Step:
        """All decodes stand still: a row of the log, in which the step counter does not move."""
        row = self.step + len(self._pauses)
        self._pauses.append(self.step)
        self.paused.append(row)
        return self._form_chunks(plan, self.step, 0, 0, 0, [], row)

    def _form_held(self, plan: Plan) -> Step:
        """Some decodes stand still for this step: they sit it out, and their tables move by one step."""
        for seq in plan.held:
            self._leave(seq)
            decode = self._decoding[seq.index]
            if decode.last >= self.step:  # else its last token is on its way, though nobody knows that yet
                self._postpone(seq, decode)
        formed = self._form(plan)
        for seq in plan.held:
            decode = self._decoding[seq.index]
            decode.base -= 1
            self._join(seq, decode)
        return formed

    def _postpone(self, seq: SequenceState, decode: _Decode) -> None:
        """End the range of tokens before the step to be formed, and go on after it."""
        self._unlist(seq, decode)
        if self.step > decode.first:
            self._record(seq.index, decode, self.step - 1)
        decode.first, decode.last, decode.paused_row = self.step + 1, decode.last + 1, -1
        self._ending.setdefault(decode.last, []).append(seq)

    def _start_decoding(self, seq: SequenceState, ending: list[SequenceState], paused_row: int) -> None:
        """The chunk that was just formed is the last one: it brings a token, and each step after it one more."""
        step = self.step - 1
        remaining = self._outputs[seq.index] - (seq.target - seq.prompt_tokens)
        decode = _Decode(seq.computed - step - 1, step, step + remaining - 1, self.foreseen(seq), paused_row)
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

    def _join(self, seq: SequenceState, decode: _Decode) -> None:
        """Count `seq` among the decodes of the steps to come."""
        computed = decode.base + self.step
        self.decodes += 1
        self._context += computed
        self._phases[-decode.base % self._block_size] += 1
        if self.window:
            self._window_context += min(computed, self.window)
            if computed < self.window:
                self._growing += 1
                full_at = self.window - decode.base
                self._full_at[full_at] = self._full_at.get(full_at, 0) + 1

    def _leave(self, seq: SequenceState) -> None:
        """Count `seq` among the decodes no longer."""
        base = self._decoding[seq.index].base
        computed = base + self.step
        self.decodes -= 1
        self._context -= computed
        self._phases[-base % self._block_size] -= 1
        if self.window:
            self._window_context -= min(computed, self.window)
            if computed < self.window:
                self._growing -= 1
                full_at = self.window - base
                self._full_at[full_at] -= 1
                if not self._full_at[full_at]:
                    del self._full_at[full_at]

    def _leave_early(self, ending: list[SequenceState]) -> None:
        for seq in ending:
            if self._decoding[seq.index].leaves_early:
                self._leave(seq)
                self._settle(seq)
                seq.decoding = False
                seq.target = seq.computed  # nothing more to compute; its last token is on its way

    def _settle(self, seq: SequenceState) -> None:
        """Bring the fields and the blocks of a decoding sequence up to date.

        What it computes is registered when the step that does so is formed, or under asynchronous scheduling the one
        after that, which is formed when the tokens are known.
        """
        computed = self._decoding[seq.index].base + self.step
        seq.computed = computed
        seq.target = computed + 1
        if seq.blocks:  # else the policy has just released it
            self.pool.settle(seq, computed, computed - self.depth + 1)

    def _preempt(self, seq: SequenceState) -> None:
        """Take `seq`, whose blocks are released, out of the running list."""
        del self._running[seq.index]
        if seq.decoding:
            self._leave(seq)
        decode = self._decoding.get(seq.index)
        if decode is None:
            self.prefilling.remove(seq)
        elif decode.last >= self.step:  # else all its tokens are on their way: it will finish while it waits
            self._unlist(seq, decode)
            if self.step > decode.first:
                self._record(seq.index, decode, self.step - 1)
            del self._decoding[seq.index]
        self.requeue(seq)

    def _unlist(self, seq: SequenceState, decode: _Decode) -> None:
        listed = self._ending[decode.last]
        listed.remove(seq)
        if not listed:
            del self._ending[decode.last]

    def _record(self, index: int, decode: _Decode, last: int) -> None:
        """Write the range of tokens from the decode's first to those of step `last`, as rows."""
        first = decode.first
        if self._pauses:
            begin = self._row(first) if decode.paused_row < 0 else decode.paused_row
            first, last = begin, begin if last == first else self._row(last)
        self.log.segment(index, self.number, first, last)

    def _row(self, step: int) -> int:
        return step + bisect_right(self._pauses, step)

    # --- completing a step

    def _finish(self, seq: SequenceState) -> None:
        decode = self._decoding[seq.index]
        tokens = seq.prompt_tokens + self._outputs[seq.index] - 1  # all but the last one, which is not computed
        if seq.decoding:
            # Its end was not foreseen: a step formed since then computes a token that nobody will see.
            self._leave(seq)
            self._settle(seq)
            seq.decoding = False
            self._wasted += seq.computed - tokens
        del self._decoding[seq.index]
        if self._pauses:
            self._record(seq.index, decode, decode.last)
        else:  # as there, without the call: this is done for every request
            self.log.segment(seq.index, self.number, decode.first, decode.last)
        self.depart(seq)
        if self._running.pop(seq.index, None) is None:
            self.waiting.remove(seq)  # it was preempted while its last token was on its way, and holds nothing
        else:
            self.pool.register(seq, tokens)
            self.part(seq)
