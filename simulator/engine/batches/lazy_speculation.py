"""The O(changes) batch of speculative decoding: the accepted drafts of a request are drawn when it starts to decode.

All of its steps are known then: the tokens that each produces, the keys to which it attends, the blocks that it
allocates, and the last step. They are added to a table by step with the totals of all decodes. So a step costs one
lookup in the table, and a request a few array operations.

It replaces `explicit.ExplicitBatch` if every sequence has the same number of drafts, and the token budget truncates
none (`build.needs_explicit_for`).
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.shape import BatchShape
from simulator.engine.batches.draft_counts import DraftCounts
from simulator.engine.batches.draft_course import BLOCKS, DRAFTS, KEYS, Course, Start
from simulator.engine.batches.draft_courses import CourseMaker
from simulator.engine.batches.draft_table import StepTable
from simulator.engine.batches.interface import BatchContext, Step
from simulator.engine.batches.lazy import LazyBatch
from simulator.scheduling import STEADY, Plan, SequenceState

_new_tuple = tuple.__new__


class _Step(Step):
    """A step with the number of tokens that it produces."""

    __slots__ = ("tokens",)

    def __init__(self, index: int, shape: BatchShape, ending: Sequence[SequenceState], tokens: int) -> None:
        self.index, self.shape, self.ending, self.tokens = index, shape, ending, tokens
        self.end_ns = 0


class SpeculatingBatch(LazyBatch):
    """The lazy batch with drafts: `courses` draws the decodes, and `counts` counts the accepted drafts."""

    def __init__(self, context: BatchContext, courses: CourseMaker, counts: DraftCounts) -> None:
        super().__init__(context)
        self._counts, self._k, self._depth, self._maker = counts, courses.drafts, counts.depth, courses
        self._table = StepTable()
        self._courses: dict[int, Course] = {}
        self._draws: dict[int, int] = {}  # by preempted request: number of used runs
        self._leaving: dict[int, list[tuple[int, Course]]] = {}  # by step: preempted requests with tokens from it

    # --- the policy's view

    @property
    def decode_tokens(self) -> int:
        return self.decodes + self._table.entry(self.step, DRAFTS)

    def decode_blocks(self) -> int:
        return self._table.entry(self.step, BLOCKS)

    def quiet_steps(self, most: int) -> int:
        """Return 0: no two steps have the same work, so that none can be coalesced."""
        return 0

    # --- the replica's verbs

    def complete(self, step: Step) -> Sequence[SequenceState]:
        assert isinstance(step, _Step)
        # Tokens beyond one of each sequence, which `LazyBatch.complete` counts.
        self.known_tokens += step.tokens - step.shape.sampled
        if self._leaving:
            for index, course in self._leaving.pop(step.index, ()):
                self._record_until(index, course, step.index + 1)
        return super().complete(step)

    def join(self, seq: SequenceState) -> None:
        self._steady = False
        self.enter(seq)
        self._running[seq.index] = seq
        self.running += 1
        left = self._setup.outputs[seq.index] - (seq.target - seq.prompt_tokens)
        self._begin(seq, self._course(seq, 0, seq.target - 1, left))

    def withdraw(self, seq: SequenceState) -> int:
        course = self._courses.get(seq.index)
        delivered = seq.target - seq.prompt_tokens if course is None else self._break_off_course(seq, course)
        self._draws.pop(seq.index, None)
        self._courses.pop(seq.index, None)
        self.depart(seq, delivered)
        if seq.index in self.parked:
            del self.parked[seq.index]
        elif self._running.pop(seq.index, None) is None:
            self.waiting.remove(seq)
        else:
            self.running -= 1
            if course is None:
                self.prefilling.remove(seq)
            self.pool.retire(seq)
        return delivered

    def _break_off_course(self, seq: SequenceState, course: Course) -> int:
        """End the decode of a withdrawn sequence: log the tokens of ended steps, and drop those of a step in flight.
        Return the number of output tokens of the request so far."""
        if seq.decoding:
            self.decodes -= 1
            self._settle(seq)
            self._table.remove(course, self.step)
            seq.decoding = False
        if course.token_steps and course.last >= self.step:
            self._unlist(seq, course.last)
        ended, _ = self._ended_steps()
        if ended < course.first:  # the token of the prompt's last chunk is in flight, if there is one
            self._wasted += course.start.lead
            self._withdrawn.add(seq.index)
            return course.known(0) - course.start.lead - seq.prompt_tokens
        got = min(ended - course.first, course.token_steps)
        self._record_until(seq.index, course, course.first + got)
        if ended < self.step and got < course.token_steps:
            self._wasted += course.tokens(got)
            self._withdrawn.add(seq.index)
        return course.known(got) - seq.prompt_tokens

    def close(self) -> None:
        unfinished = [*self._courses.items(), *(each for gone in self._leaving.values() for each in gone)]
        for index, course in unfinished:
            if self.completed > course.first - course.start.lead:
                self._record_until(index, course, min(self.completed, course.last + 1))

    def check(self) -> None:
        sequences = list(self.oldest_first())
        assert self.running == len(sequences)
        self.pool.check([*sequences, *self.outside.values()])
        assert all(seq.blocks >= self.pool.blocks_for(seq.computed) for seq in sequences)
        decoding = [seq for seq in sequences if seq.decoding]
        assert self.decodes == len(decoding)
        decoding = [seq for seq in decoding if self._courses[seq.index].end > self.step]  # else it has no step left
        row = self._table.row(self.step)
        assert row[DRAFTS] == sum(seq.todo - 1 for seq in decoding)
        assert row[KEYS] == sum(seq.target for seq in decoding)
        end = max((course.end for course in self._courses.values()), default=self.step)
        assert not any(any(self._table.row(step)) for step in range(max(end, self.step), self._table.end))

    # --- forming a step

    def _form(self, plan: Plan) -> Step:
        step, decodes, table = self.step, self.decodes, self._table
        if step + 2 > table.end:  # the next step's row is read, too
            table.widen(step, step + 2)
        _, keys, drafts, tokens, window_keys = table.row(step)
        self.step = step + 1
        ending = self._ending.pop(step, [])
        for seq in ending:
            if self._courses[seq.index].end == self.step:
                self._leave(seq)
        if plan is STEADY:
            shape = (decodes, keys, window_keys, (), 0, decodes, drafts, self._depth)
            return _Step(step, _new_tuple(BatchShape, shape), ending, tokens)
        chunks, padded, new_requests, through = self._compute(plan, ending)
        for seen in padded:  # prompts padded with drafts are computed as decodes
            decodes += 1
            keys += seen
            drafts += self._k
            window_keys += min(seen, self.window)
        sampled = decodes + through
        passes = self._depth if sampled else 0
        totals = (decodes, keys, window_keys, chunks, new_requests, sampled, drafts, passes)
        return _Step(step, _new_tuple(BatchShape, totals), ending, tokens + through + len(padded))

    def _compute(
        self, plan: Plan, ending: list[SequenceState]
    ) -> tuple[tuple[tuple[int, int], ...], list[int], int, int]:
        """Apply a plan's admissions and chunks; return the shapes of the chunks, the keys of padded prompts, the number
        of new requests, and the number of prompts whose last chunk it has."""
        new_requests = through = 0
        for seq in plan.admitted:
            self.admit(seq)
            self._running[seq.index] = seq
            self.running += 1
            self.prefilling.append(seq)
            new_requests += not seq.preemptions
        shapes, padded = [], []
        for seq, tokens in plan.chunks:
            before = seq.computed
            seq.computed += tokens
            if seq.computed > seq.target:
                padded.append(seq.computed)
            else:
                shapes.append((tokens, before))
                through += seq.computed == seq.target
            if seq.computed >= seq.target:
                self.prefilling.remove(seq)
                self._start(seq, ending)
        return tuple(shapes), padded, new_requests, through

    def _start(self, seq: SequenceState, ending: list[SequenceState]) -> None:
        """Start the decode of a sequence whose last chunk was just formed: it produces a token. Tokens computed beyond
        the target are the drafts of vLLM's padding, which are all rejected."""
        left = self._setup.outputs[seq.index] - (seq.target - seq.prompt_tokens) - 1
        course = self._course(seq, 1, seq.target, left)
        if not left:
            ending.append(seq)
        if course.end > course.first:
            self._begin(seq, course)
        else:
            self._courses[seq.index] = course
            seq.target = seq.computed  # no token is left to compute

    def _course(self, seq: SequenceState, lead: int, base: int, left: int) -> Course:
        """Draw the course of `seq` from the next step on, with `left` tokens after the `base` computed ones; `lead` as
        in `Start`."""
        draws = self._draws.pop(seq.index, 0) if self._draws else 0
        ahead, limit = max(seq.computed - seq.target, 0), seq.prompt_tokens + seq.max_tokens
        start = _new_tuple(Start, (lead, draws, base, ahead, left, seq.blocks, limit))
        return self._maker.course(seq.index, self.step, start)

    def _begin(self, seq: SequenceState, course: Course) -> None:
        """Let a sequence decode from the next step on."""
        self._courses[seq.index] = course
        if course.end >= self._table.end:
            self._table.widen(self.step, course.end + 1)
        self._table.add(course)
        if course.token_steps:
            self._ending.setdefault(course.last, []).append(seq)
        seq.decoding = True
        self.decodes += 1

    def _leave(self, seq: SequenceState) -> None:
        """Remove `seq`, whose last step has been formed, from the decodes."""
        self.decodes -= 1
        seq.decoding = False
        self._settle(seq)
        seq.target = seq.computed

    def _settle(self, seq: SequenceState) -> None:
        course = self._courses[seq.index]
        at = self.step - course.first
        seq.computed = seq.target = course.computed(at)
        if self.step < course.end:
            seq.target += 1 + course.drafts(at)
        if seq.blocks:  # else the policy has just released them
            self.pool.settle(seq, course.blocks(at) * self.pool.block_size, course.sure(at))

    def _preempt(self, seq: SequenceState) -> None:
        """Move `seq`, whose blocks are released, from the running list to the waiting queue."""
        del self._running[seq.index]
        self.running -= 1
        course = self._courses.get(seq.index)
        if course is None:
            self.prefilling.remove(seq)
        else:
            if seq.decoding:
                self.decodes -= 1
                self._table.remove(course, self.step)
            if course.last >= self.step:  # else all of its tokens are in flight: it will finish while it waits
                self._end_here(seq, course)
        self.requeue(seq)

    def _end_here(self, seq: SequenceState, course: Course) -> None:
        """End the course of a preempted sequence with the steps formed so far."""
        del self._courses[seq.index]
        self._unlist(seq, course.last)
        at = self.step - course.first
        self._draws[seq.index] = course.used(at)
        seq.target = course.known(at)
        if self.completed < self.step:
            self._leaving.setdefault(self.step - 1, []).append((seq.index, course))
        elif at + course.start.lead:
            self._record_until(seq.index, course, self.step)

    # --- completing a step

    def _finish(self, seq: SequenceState) -> None:
        course = self._courses.pop(seq.index)
        tokens = seq.prompt_tokens + self._setup.outputs[seq.index] - 1  # without the last one, which is not computed
        if seq.decoding:
            # The scheduler did not know the end: a step formed since then computes tokens that are not delivered.
            self.decodes -= 1
            seq.decoding = False
            self.pool.settle(seq, course.blocks(course.end - course.first) * self.pool.block_size, tokens)
        self._record_until(seq.index, course, course.last + 1)
        self.depart(seq, self._setup.outputs[seq.index])
        if self._running.pop(seq.index, None) is None:
            self.waiting.remove(seq)  # it was preempted while its last token was in flight, and holds no blocks
        else:
            self.running -= 1
            self.pool.register(seq, tokens)
            self.retire(seq)

    def _record_until(self, index: int, course: Course, end: int) -> None:
        """Log the tokens of a course from its first one to those of the step before `end`."""
        steps, lead = end - course.first, course.start.lead
        if not steps + lead:
            return
        self._setup.log.segment(index, self.number, course.first - lead, end - 1)
        drafts, accepted, tokens = course.outcomes(steps)
        self._setup.log.events(b"\1" * lead + tokens)
        self._counts.add(drafts, accepted)
