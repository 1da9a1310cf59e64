"""Data parallelism of a mixture of experts: ranks that step together, since they meet in every layer with experts."""

from __future__ import annotations

from collections.abc import Generator

from simpy.events import Event

from cost_models.shape import BatchShape, LockstepCost
from simulator.engine.batches.base import Step
from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore
from simulator.engine.device import Device
from simulator.scheduling import Plan

_IDLE = BatchShape()
_Formed = list[tuple["LockstepCore", Step, Plan]]


class Barrier:
    """Lets the ranks of a replica form their steps at the same moment, and end them when the slowest does.

    A rank without work takes part with an empty batch (vLLM: `execute_dummy_batch`); when none has work, all rest until
    a request comes. As in vLLM, each rank has a scheduler of its own, and `passes` counts the steps since the last
    rest, the same number for all: by it a prefill interval lets all of them prefill in the same steps
    (vllm/v1/engine/core.py: `DPEngineCoreProc`). vLLM finds out that none has work only every 32 steps, and steps on
    with empty batches until then; here the rest begins at once.

    `depth` is that of `EngineCore`: with 2, the next step of all is formed while the device runs this one.
    """

    def __init__(self, clock: Clock, cost: LockstepCost, depth: int) -> None:
        self.passes = 0
        self._clock = clock
        self._cost = cost
        self._depth = depth
        self._device = Device()
        self._ranks: list[LockstepCore] = []
        self._wake: Event | None = None
        clock.process(self._run())

    def join(self, rank: LockstepCore) -> None:
        """Let `rank` step with the others."""
        rank.barrier = self
        self._ranks.append(rank)

    def awake(self) -> None:
        """One of the ranks has got a request."""
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    @property
    def rests(self) -> bool:
        """Whether the ranks rest: none of them has work."""
        return self._wake is not None

    def _run(self) -> Generator[Event, None, None]:
        """The loop of `EngineCore`, for all ranks."""
        clock = self._clock
        formed: _Formed = []
        while True:
            if not formed:
                formed = self._form(())
            if not formed:
                yield self._rest()
                continue
            following = self._form(formed) if self._depth == 2 else []
            end_ns = formed[0][1].end_ns
            if not clock.advance(end_ns):
                yield clock.timeout(end_ns - clock._now)
            for rank, step, _ in formed:
                rank.complete(step)
            formed = following

    def _rest(self) -> Event:
        """What comes to pass when a rank has work again."""
        self.passes = 0
        self._wake = wake = self._clock.event()
        for rank in self._ranks:
            rank.watch_door()
        return wake

    def _form(self, under_way: _Formed | tuple[()]) -> _Formed:
        """Form the next step of each rank that has something to do, and give all of them the same place in time.

        Behind a step that only preempts a rank forms nothing: its end must free the queue first.
        """
        blocked = {rank for rank, step, _ in under_way if not step.shape.sampled + len(step.shape.chunks)}
        formed = []
        for rank in self._ranks:
            found = None if rank in blocked else rank.form()
            if found is not None:
                formed.append((rank, *found))
        if formed:
            self.passes += 1
            self._place(formed)
        return formed

    def _place(self, formed: _Formed) -> None:
        shapes = [rank.charged(step.shape, plan) for rank, step, plan in formed]
        shapes += [_IDLE] * (len(self._ranks) - len(shapes))
        now = self._clock._now
        cost = self._cost.lockstep_cost(shapes)
        start_ns, end_ns = self._device.place(now, cost)
        for rank, step, plan in formed:
            rank.placed(step, plan, now, start_ns, end_ns, cost.draft_ns)


class LockstepCore(EngineCore):
    """A replica that steps with the others of its `barrier`, which it must join."""

    barrier: Barrier

    def _start(self) -> None:
        """It has no process of its own."""

    def wake(self, _: Event | None = None) -> None:
        """See `EngineCore`."""
        self.barrier.awake()

    def _rests(self) -> bool:
        return self.barrier.rests

    def watch_door(self) -> None:
        """Wake the ranks when the next request is through the front end."""
        if self._entering:
            self._clock.at(self._entering[0][0], self.wake)

    def form(self) -> tuple[Step, Plan] | None:
        """Form the next step, without a place in time; None if there is nothing to do."""
        if self._entering:
            self._let_in()
        if self.inbox is not None and self.inbox.pending:
            self.inbox.serve()
        if self.offloading is not None:
            self.offloading.serve()
        plan = self._policy.schedule(self.batch, self._pool)
        step = self.batch.form(plan)
        if step is None:
            return None
        if plan.admitted or plan.preempted:
            self._note_changes(plan, self._clock._now)
        return step, plan

    def placed(self, step: Step, plan: Plan, now: int, start_ns: int, end_ns: int, draft_ns: int) -> None:
        """Log a step that has got its place in time; `draft_ns` of it are what the ranks propose."""
        step.end_ns = self._busy_until_ns = end_ns
        if self.computes is not None and step.shape.chunks:
            self.computes(plan.chunks or plan.work, start_ns, end_ns)
        batch, pool, log = self.batch, self._pool, self.steps
        shape = step.shape
        if shape.draft_tokens or shape.proposed:
            log.drafted((log.formed, shape.draft_tokens, shape.proposed, draft_ns))
        prefill_tokens = sum(tokens for tokens, _ in shape.chunks)
        waiting, kv_used = len(batch.waiting), pool.blocks - pool.free
        log.write((now, start_ns, end_ns, shape.decodes, prefill_tokens, batch.running, waiting, kv_used))
        log.pack()
        if self._watched:
            self._inspect(step, now, start_ns)

    def complete(self, step: Step) -> None:
        """Deliver the tokens of a step that has ended."""
        self.steps.completed += 1 + self._tokens_waiting
        self._tokens_waiting = 0
        finished = self.batch.complete(step)
        if self._observer is not None:
            self._observer.completed(step)
        if finished:
            self._finished(self, finished)
