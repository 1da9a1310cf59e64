"""Data parallelism of a mixture of experts: engine cores that step together, synchronized by every expert layer."""

from __future__ import annotations

from collections.abc import Generator

from simpy.events import Event

from cost_models.shape import BatchShape, LockstepCost
from simulator.engine.batches.interface import Step
from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore
from simulator.engine.device import Device
from simulator.scheduling import Plan

_IDLE = BatchShape()
_Formed = list[tuple["LockstepCore", Step, Plan]]


class Barrier:
    """Synchronization of the engine cores of a replica: their steps start together and end with the slowest.

    A core without work runs an empty batch (vLLM: `execute_dummy_batch`); when none has work, all are idle until a
    request arrives. As in vLLM, each core has a scheduler of its own, and `passes` counts the steps since all were
    idle, the same number for all: with a prefill interval they prefill in the same steps (vllm/v1/engine/core.py:
    `DPEngineCoreProc`). vLLM checks only every 32 steps whether any core has work, and runs empty batches until then;
    here the cores are idle at once.

    `depth` is that of `EngineCore`: with 2, the next step of all is formed while the device runs the current one.
    """

    def __init__(self, clock: Clock, cost: LockstepCost, depth: int) -> None:
        self.passes = 0
        self._clock = clock
        self._cost = cost
        self._depth = depth
        self._device = Device()
        self._cores: list[LockstepCore] = []
        self._loop = clock.loop(self._run())

    def join(self, core: LockstepCore) -> None:
        """Add `core` to those that step together."""
        core.barrier = self
        self._cores.append(core)

    def awake(self) -> None:
        """Form steps again, if the cores are idle."""
        if self._loop.idle:
            self._clock.wake(self._loop)

    @property
    def rests(self) -> bool:
        """Whether all cores are idle."""
        return self._loop.idle

    def _run(self) -> Generator[None, Event, None]:
        """Run the loop of `EngineCore` for all cores."""
        clock = self._clock
        formed: _Formed = []
        while True:
            if not formed:
                formed = self._form(())
            if not formed:
                self._rest()
                yield
                continue
            following = self._form(formed) if self._depth == 2 else []
            end_ns = formed[0][1].end_ns
            if not clock.until(end_ns, self._loop):
                yield
            for core, step, _ in formed:
                core.complete(step)
            formed = following

    def _rest(self) -> None:
        """Be idle until a core wakes the barrier."""
        self.passes = 0
        self._loop.idle = True
        for core in self._cores:
            core.watch_front_end()

    def _form(self, under_way: _Formed | tuple[()]) -> _Formed:
        """Form the next step of each core that has work, and give all of them the same start and end.

        After a step that only preempts, a core forms no other: the end of that step must free the queue first.
        """
        blocked = {core for core, step, _ in under_way if not step.shape.sampled + len(step.shape.chunks)}
        formed = []
        for core in self._cores:
            found = None if core in blocked else core.form()
            if found is not None:
                formed.append((core, *found))
        if formed:
            self.passes += 1
            self._place(formed)
        return formed

    def _place(self, formed: _Formed) -> None:
        shapes = [core.charged(step.shape, plan) for core, step, plan in formed]
        shapes += [_IDLE] * (len(self._cores) - len(shapes))
        cost = self._cost.lockstep_cost(shapes)
        start_ns, end_ns = self._device.place(self._clock._now, cost)
        for core, step, plan in formed:
            core.placed((step, plan), start_ns, end_ns, cost.draft_ns)


class LockstepCore(EngineCore):
    """An engine core that steps together with the others of its `barrier`, to which it must be added."""

    barrier: Barrier

    def _start(self) -> None:
        """Start no process: the barrier has the loop."""

    def wake(self, _: Event | None = None) -> None:
        """Notify the barrier that there may be work."""
        self.barrier.awake()

    def _sleeps(self) -> bool:
        return self.barrier.rests

    def watch_front_end(self) -> None:
        """Wake the barrier when the front end has processed the next request."""
        if self._front_end.queue:
            self._clock.at(self._front_end.queue[0][0], self.wake)

    def form(self) -> tuple[Step, Plan] | None:
        """Form the next step, without its start and end; None if there is no work."""
        self._prepare()
        plan = self._policy.schedule(self.batch, self.batch.pool)
        step = self.batch.form(plan)
        if step is None:
            return None
        if plan.admitted or plan.preempted:
            self._log_changes(plan, self._clock._now)
        return step, plan

    def placed(self, formed: tuple[Step, Plan], start_ns: int, end_ns: int, draft_ns: int) -> None:
        """Log a step after its start and end are known; `draft_ns` is the part of the drafts that the cores propose."""
        step, plan = formed
        step.end_ns = self._device.free_ns = end_ns
        now, batch, pool, log, shape = self._clock._now, self.batch, self.batch.pool, self.steps, step.shape
        for connector in self.connectors:
            if connector.sees_steps:
                connector.scheduled(plan, start_ns, end_ns)
        if shape.draft_tokens or shape.proposed:
            log.drafted((log.formed, shape.draft_tokens, shape.proposed, draft_ns))
        prefill_tokens = sum(tokens for tokens, _ in shape.chunks)
        waiting, kv_used = len(batch.waiting), pool.blocks - pool.free
        log.write((now, start_ns, end_ns, shape.decodes, prefill_tokens, batch.running, waiting, kv_used))
        log.pack()
        if self._observer is not None:
            self._observer.formed(step, now, start_ns)

    def complete(self, step: Step) -> None:
        """Deliver the tokens of a step that has ended."""
        self.steps.completed += 1 + self.steps.inserted
        self.steps.inserted = 0
        finished = self.batch.complete(step)
        if self._observer is not None:
            self._observer.completed(step)
        if finished:
            self._finish(finished)
