"""The O(changes) batch of speculative decoding: what becomes of a request's drafts is drawn when it starts to decode.

Its steps are then known one by one: how many tokens each brings, the keys it attends to, the blocks it asks for, and
which one is the last. They are added, a row of numbers a request, to a table by step, which says of every step what all
decodes together do in it. So a step costs a look into the table, and a request a few array operations.

It stands for `exact.ExactBatch` where every sequence has the same number of drafts, and none is cut for want of budget;
see `scheduling.policies.needs_exact`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from cost_models.shape import BatchShape
from simulator.engine.batch import Step
from simulator.engine.draft_counts import DraftCounts
from simulator.engine.lazy import LazyBatch
from simulator.engine.log import RequestLog
from simulator.memory import BlockPool
from simulator.results.record import Ints
from simulator.scheduling import Plan, Sequence, Speculation
from simulator.speculation import AcceptanceLaw
from simulator.speculation.acceptance import NOTHING

#: The rows of the table by step.
_BLOCKS, _KEYS, _DRAFTS, _TOKENS, _WINDOW = range(5)
#: Steps that the table has room for at first.
_STEPS = 4096


class _Course(NamedTuple):
    """The decode of one sequence, drawn to its end: what it does in steps `first`, `first` + 1, ...

    `lead` is 1 if a token came before, from the step that computed the last of the prompt: drafts were proposed after
    it, for the first step. `table` (5, n) has its rows of the batch's table; `computed`, `runs`, `accepted` and
    `blocks` (n,) are its computed tokens before each step, the run drawn for it, what it accepts, and the blocks held
    in it; `draws` and `before` are the runs that were used up and the blocks that were held before the first.
    """

    first: int
    lead: int
    draws: int
    before: int
    table: Ints
    computed: Ints
    runs: Ints
    accepted: Ints
    blocks: Ints

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.first + len(self.computed)

    def draws_before(self, at: int) -> int:
        """Runs that are used up when step `at` (from 0) is not taken: it was proposed for, and keeps its drafts, unless
        there were none."""
        if not at and not self.lead:
            return self.draws
        return self.draws + at - (1 - self.lead) + int(self.runs[at] == NOTHING)


class SpeculatingBatch(LazyBatch):
    """See the module's text. Synchronous, and without prefix caching."""

    def __init__(
        self,
        number: int,
        pool: BlockPool,
        log: RequestLog,
        outputs: Seq[int],
        window: int,
        speculation: Speculation,
        law: AcceptanceLaw,
        counts: DraftCounts,
        max_model_len: int,
    ) -> None:
        super().__init__(number, pool, log, outputs, 1, window)
        self._law, self._counts = law, counts
        self._k, self._lookahead = speculation.k, speculation.lookahead
        self._max_model_len = max_model_len
        self._table = np.zeros((5, _STEPS), np.int64)
        self._courses: dict[int, _Course] = {}
        self._draws: dict[int, int] = {}  # by preempted request: runs that are used up
        self._usual = 1 + counts.depth // 2  # tokens that a step brings, for a guess of how many runs are asked for

    # --- the policy's view

    @property
    def decode_tokens(self) -> int:
        return self.decodes + int(self._table[_DRAFTS, self.step])

    def decode_blocks(self) -> int:
        return int(self._table[_BLOCKS, self.step])

    def quiet_steps(self, most: int) -> int:
        """No two steps are alike, so that there are no runs of them to coast through."""
        return 0

    # --- the replica's verbs

    def complete(self, step: Step) -> Seq[Sequence]:
        decoded = int(self._table[_TOKENS, step.index])
        self.unfinished_output_tokens += decoded - step.shape.decodes
        return super().complete(step)

    def join(self, seq: Sequence) -> None:
        self.enter(seq)
        self._running[seq.index] = seq
        seq.decoding = True
        left = self._outputs[seq.index] - (seq.target - seq.prompt_tokens)
        self._begin(seq, self._course(seq, self.step, seq.target - 1, left, lead=0))

    def close(self) -> None:
        for index in list(self._courses):
            course = self._courses[index]
            if self.completed > course.first - course.lead:
                self._record_until(index, course, min(self.completed, course.end))

    def check(self) -> None:
        sequences = list(self.oldest_first())
        self.pool.check([*sequences, *self.outside.values()])
        assert all(seq.blocks >= self.pool.blocks_for(seq.computed) for seq in sequences)
        decoding = [seq for seq in sequences if seq.decoding]
        assert self.decodes == len(decoding)
        row = self._table[:, self.step]
        assert row[_DRAFTS] == sum(seq.todo - 1 for seq in decoding)
        assert row[_KEYS] == sum(seq.target for seq in decoding)
        assert not self._table[:, self.step + max((len(c.computed) for c in self._courses.values()), default=0) :].any()

    # --- forming a step

    def _form(self, plan: Plan) -> Step:
        step, decodes = self.step, self.decodes
        if step + 2 > self._table.shape[1]:
            self._widen(step + 2)
        _, keys, drafts, _, window_keys = self._table[:, step].tolist()
        self.step = step + 1
        ending = self._ending.pop(step, [])
        for seq in ending:
            self._leave(seq)
        chunks, new_requests, sampled = self._compute(plan, ending)
        sampled += decodes
        passes = self._counts.depth if sampled else 0
        return Step(step, BatchShape(decodes, keys, window_keys, chunks, new_requests, sampled, drafts, passes), ending)

    def _compute(self, plan: Plan, ending: list[Sequence]) -> tuple[tuple[tuple[int, int], ...], int, int]:
        """Do the prompts' part of the plan; its chunks, the requests that are new, and the prompts that are through."""
        new_requests = sampled = 0
        for seq in plan.admitted:
            self.admit(seq)
            self._running[seq.index] = seq
            self.prefilling.append(seq)
            new_requests += not seq.preemptions
        shapes = []
        for seq, tokens in plan.chunks:
            shapes.append((tokens, seq.computed))
            seq.computed += tokens
            if seq.computed >= seq.target:
                seq.computed = seq.target  # beyond it are the drafts of vLLM's padding, which are all rejected
                sampled += 1
                self.prefilling.remove(seq)
                self._start(seq, ending)
        return tuple(shapes), new_requests, sampled

    def _start(self, seq: Sequence, ending: list[Sequence]) -> None:
        """The chunk that was just formed is the last one: it brings a token."""
        left = self._outputs[seq.index] - (seq.target - seq.prompt_tokens) - 1
        course = self._course(seq, self.step, seq.target, left, lead=1)
        if not left:
            self._courses[seq.index] = course
            ending.append(seq)
            return
        seq.decoding = True
        self._begin(seq, course)

    def _begin(self, seq: Sequence, course: _Course) -> None:
        """Let a sequence decode from the next step on."""
        self._courses[seq.index] = course
        if course.end + 1 > self._table.shape[1]:
            self._widen(course.end + 1)
        self._table[:, course.first : course.end] += course.table
        self._ending.setdefault(course.end - 1, []).append(seq)
        self.decodes += 1

    def _widen(self, steps: int) -> None:
        """Make room in the table for at least that many steps."""
        more = max(steps - self._table.shape[1], self._table.shape[1])
        self._table = np.concatenate([self._table, np.zeros((len(self._table), more), np.int64)], axis=1)

    def _leave(self, seq: Sequence) -> None:
        """The last step of `seq` has been formed: there is nothing more to compute."""
        self.decodes -= 1
        seq.decoding = False
        course = self._courses[seq.index]
        seq.blocks = int(course.blocks[-1])
        seq.computed = seq.target = seq.prompt_tokens + self._outputs[seq.index] - 1

    def _settle(self, seq: Sequence) -> None:
        course = self._courses[seq.index]
        at = self.step - course.first
        seq.computed = int(course.computed[at])
        seq.target = seq.computed + 1 + int(course.table[_DRAFTS, at])
        if seq.blocks:  # else the policy has just released it
            seq.blocks = int(course.blocks[at - 1]) if at else course.before

    def _preempt(self, seq: Sequence) -> None:
        """Take `seq`, whose blocks are released, out of the running list."""
        del self._running[seq.index]
        course = self._courses.pop(seq.index, None)
        if course is None:
            self.prefilling.remove(seq)
        else:
            seq.target = seq.computed + 1
            self.decodes -= 1
            at = self.step - course.first
            self._table[:, self.step : course.end] -= course.table[:, at:]
            listed = self._ending[course.end - 1]
            listed.remove(seq)
            if not listed:
                del self._ending[course.end - 1]
            self._record_until(seq.index, course, self.step)
            self._draws[seq.index] = course.draws_before(at)
        self.requeue(seq)

    # --- what becomes of a request

    def _course(self, seq: Sequence, first: int, computed: int, left: int, lead: int) -> _Course:
        """The decode of `seq` from step `first` on, with `computed` tokens before it and `left` tokens to come."""
        draws = self._draws.pop(seq.index, 0)
        runs, accepted, upto = self._runs(seq.index, draws, left, lead)
        before = upto - accepted
        before += computed - 1
        table = np.zeros((5, len(runs)), np.int64)
        course = _Course(first, lead, draws, seq.blocks, table, before, runs, accepted, table[_BLOCKS])
        if not left:
            return course
        drafts, keys, tokens = table[_DRAFTS], table[_KEYS], table[_TOKENS]
        drafts[:] = self._k
        drafts[runs == NOTHING] = 0
        if computed + left + self._k >= self._max_model_len:
            np.minimum(drafts, self._max_model_len - 2 - before, out=drafts)
        np.add(before, drafts, out=keys)
        keys += 1
        rooms = np.minimum(keys + self._lookahead, self._max_model_len)
        rooms += self._block_size - 1
        blocks = np.maximum.accumulate(np.maximum(rooms // self._block_size, seq.blocks))
        table[_BLOCKS, 0] = blocks[0] - seq.blocks
        np.subtract(blocks[1:], blocks[:-1], out=table[_BLOCKS, 1:])
        np.add(accepted, 1, out=tokens)
        tokens[-1] -= upto[-1] - left
        if self.window:
            np.minimum(keys, self.window, out=table[_WINDOW])
        return course._replace(blocks=blocks)

    def _runs(self, index: int, draws: int, left: int, lead: int) -> tuple[Ints, Ints, Ints]:
        """The runs of a request's steps until it has got `left` tokens, what they accept, and how many tokens it has
        after each of them; no steps if `left` is 0."""
        count = min(left, left // self._usual + 8)
        while True:
            runs = self._law.some(index, draws, count).astype(np.int64)
            if not lead:  # nothing was proposed for the first
                runs = np.concatenate([[NOTHING], runs])
            accepted = np.minimum(np.maximum(runs, 0), self._counts.depth)
            upto = (accepted + 1).cumsum()
            if count == left or upto[-1] >= left:
                steps = int(upto.searchsorted(left)) + 1 if left else 0
                return runs[:steps], accepted[:steps], upto[:steps]
            count = min(left, 2 * count)

    def _finish(self, seq: Sequence) -> None:
        course = self._courses.pop(seq.index)
        self._record_until(seq.index, course, course.end)
        self.depart(seq)
        del self._running[seq.index]
        self.part(seq)

    def _record_until(self, index: int, course: _Course, end: int) -> None:
        """Write the tokens of a course from its first to those of the step before `end`."""
        steps, lead = end - course.first, course.lead
        if not steps + lead:
            return
        self.log.segment(index, self.number, course.first - lead, end - 1)
        tokens = course.table[_TOKENS, :steps].astype(np.uint8).tobytes()
        self.log.events(b"\1" * lead + tokens)
        self._counts.add(course.table[_DRAFTS, :steps], course.accepted[:steps])
