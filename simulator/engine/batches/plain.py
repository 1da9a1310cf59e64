"""The plain batch: a loop over the running sequences in each step. Slow, obvious, and the oracle of the lazy one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from cost_models.shape import BatchShape
from simulator.engine.batches.base import BatchBase, Step
from simulator.engine.logs.request_log import RequestLog
from simulator.memory import BlockPool
from simulator.scheduling import Plan, Requeue, SequenceState


class PlainStep(Step):
    """A step that also knows what it schedules, as `(sequence, tokens, computed before)`, and who gets a token."""

    __slots__ = ("emitting", "plan", "scheduled")

    def __init__(
        self,
        index: int,
        shape: BatchShape,
        plan: Plan,
        scheduled: list[tuple[SequenceState, int, int]],
        emitting: list[SequenceState],
    ) -> None:
        super().__init__(index, shape, ())
        self.plan = plan
        self.scheduled = scheduled
        self.emitting = emitting


class PlainBatch(BatchBase):
    """See the module's text. It keeps no totals, so that policies take their long way, one sequence after the other."""

    decodes = None

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
        self._running: list[SequenceState] = []
        self._token_steps: dict[int, list[int]] = {}  # by unfinished request: the step of each of its tokens
        self._wanted: dict[int, int] = {}  # by unfinished request: tokens that it gets here

    # --- the policy's view

    @property
    def prefilling_last(self) -> bool:
        raise AssertionError("the plain batch keeps no totals")

    @property
    def decode_tokens(self) -> int:
        raise AssertionError("the plain batch keeps no totals")

    @property
    def decode_steps(self) -> int:
        return self.step - len(self.paused)

    def decode_blocks(self) -> int:
        raise AssertionError("the plain batch keeps no totals")

    def oldest_first(self) -> Iterator[SequenceState]:
        return iter(self._running)

    # --- the replica's verbs

    def add(self, seq: SequenceState) -> None:
        super().add(seq)
        self._open(seq)

    def join(self, seq: SequenceState) -> None:
        self.enter(seq)
        self._open(seq)
        self._running.append(seq)
        seq.decoding = True

    def skip_row(self) -> int:
        row = self.step
        self.paused.append(row)
        self.step += 1
        return row

    def _open(self, seq: SequenceState) -> None:
        self._token_steps[seq.index] = []
        self._wanted[seq.index] = self._outputs[seq.index] - (seq.target - seq.prompt_tokens)

    def form(self, plan: Plan) -> PlainStep | None:
        for seq in plan.preempted:
            self._running.remove(seq)
            if not seq.decoding and seq in self.prefilling:
                self.prefilling.remove(seq)
            self.requeue(seq)
        new_requests = sum(not seq.preemptions for seq in plan.admitted)
        for seq in plan.admitted:
            self.admit(seq)
            self._running.append(seq)
            self.prefilling.append(seq)
        scheduled = self._scheduled(plan)
        if not scheduled and not plan.preempted:
            return None
        if plan.paused:
            self.paused.append(self.step)
        shape = self._shape(scheduled, new_requests)
        emitting = [seq for seq, tokens, _ in scheduled if self._compute(seq, tokens)]
        step = PlainStep(self.step, shape._replace(sampled=len(emitting)), plan, scheduled, emitting)
        self.step += 1
        return step

    def complete(self, step: Step) -> Sequence[SequenceState]:
        assert isinstance(step, PlainStep)
        self.completed += 1
        # What ended in the step before, which this one could not know, gets no more.
        step.emitting = [seq for seq in step.emitting if seq.index in self._token_steps]
        finished = []
        for seq in step.emitting:
            tokens = self._token_steps[seq.index]
            tokens.append(step.index)
            self.unfinished_output_tokens += 1
            if len(tokens) == self._wanted[seq.index]:
                finished.append(seq)
                self._finish(seq)
        step.ending = finished
        return finished

    def close(self) -> None:
        for index in sorted(self._token_steps):
            self._record(index)

    def check(self) -> None:
        self.pool.check([*self._running, *self.waiting, *self.outside.values()])
        assert all(seq.blocks >= self.pool.blocks_for(seq.computed) for seq in self._running)

    # --- forming a step

    def _scheduled(self, plan: Plan) -> list[tuple[SequenceState, int, int]]:
        """What the plan computes, in the scheduler's order: the running list, then the admitted sequences."""
        chunks = {seq.index: tokens for seq, tokens in plan.chunks}
        held = {seq.index for seq in (self._running if plan.paused else plan.held)}
        scheduled = []
        for seq in self._running:
            tokens = chunks.get(seq.index, 0)
            if seq.decoding and seq.todo and seq.index not in held:
                tokens = 1
            if tokens:
                scheduled.append((seq, tokens, seq.computed))
        return scheduled

    def _shape(self, scheduled: list[tuple[SequenceState, int, int]], new_requests: int) -> BatchShape:
        contexts = [computed + 1 for seq, _, computed in scheduled if seq.decoding]
        return BatchShape(
            decodes=len(contexts),
            decode_context=sum(contexts),
            decode_window_context=sum(min(context, self.window) for context in contexts),
            chunks=tuple((tokens, computed) for seq, tokens, computed in scheduled if not seq.decoding),
            new_requests=new_requests,
        )

    def _compute(self, seq: SequenceState, tokens: int) -> bool:
        """Advance `seq`; True if the step brings it a token."""
        seq.computed += tokens
        if seq.computed < seq.target:
            return False
        if not seq.decoding:
            seq.decoding = True
            self.prefilling.remove(seq)
        limit = self._outputs[seq.index] if self.depth == 1 else seq.max_tokens
        if seq.computed < seq.prompt_tokens + limit - 1:
            seq.target += 1  # the token that this step will bring is one more to compute
        return True

    # --- completing a step

    def _finish(self, seq: SequenceState) -> None:
        self._record(seq.index)
        self.depart(seq)
        del self._wanted[seq.index]
        if seq in self._running:
            self._running.remove(seq)
            self.part(seq)
        else:  # it was preempted while its last token was on its way, and holds nothing
            self.waiting.remove(seq)

    def _record(self, index: int) -> None:
        """Write the token times of a request as ranges of steps in which only the paused ones bring nothing."""
        steps = self._token_steps.pop(index)
        first = 0
        for at in range(1, len(steps) + 1):
            if at == len(steps) or steps[at] != self._after(steps[at - 1]):
                self.log.segment(index, self.number, steps[first], steps[at - 1])
                first = at

    def _after(self, step: int) -> int:
        """The next step that is not paused."""
        step += 1
        for paused in self.paused[bisect_left(self.paused, step) :]:
            if paused != step:
                break
            step += 1
        return step
