"""The engine's loop without a clock, which schedules the requests of a recording again, one step after the other.

Requests with `arrival_ns` <= now join the queue; a step is scheduled if fewer than `depth` are in flight; then the
oldest one ends. It is the loop of the program that made the recordings, and that of `EngineCore` without events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.engine.batches.explicit import ExplicitBatch
from simulator.engine.batches.explicit_step import ExplicitStep, Speculator
from simulator.engine.batches.interface import BatchContext
from simulator.engine.logs.step_line import CoreState, complete_line, formed_line
from simulator.memory import NO_DRAFTS, Contents, PoolLayout, build_pool
from simulator.scenario.schedulers import Scheduler
from simulator.scenario.schema import Allocation
from simulator.scheduling import PolicySetup, Speculation, TrackedSequence, build_policy, limits


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One request of a recording; the scheduler knows its `max_tokens`, but not its `output_tokens`.

    `behind_step` is the step in flight if the scheduler was called at the instant of the arrival, but before it: the
    request joins the queue after the end of that step. Else it is -1.
    """

    id: Any
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int
    behind_step: int = -1


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Settings of the engine of a recording; `kv_blocks` are the usable ones."""

    scheduler: Scheduler
    speculation: Speculation | None
    kv_blocks: int
    block_size: int
    max_model_len: int
    allocation: Allocation = "paged"


class TimeLaw(Protocol):
    """Interface of the times of steps."""

    def times(self, step: ExplicitStep, ready_ns: int) -> tuple[int, int]:
        """Return the start and the end, in ns, of a step that could start at `ready_ns`."""


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """Requests of a recording by arrival, the contents of their prompts, and the laws of times and drafts."""

    requests: Sequence[ReplayRequest]
    contents: Contents
    law: TimeLaw
    speculator: Speculator | None = None


class _NoLog:
    """A token log that records nothing."""

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None:
        pass

    def preempted(self, index: int, lost_tokens: int) -> None:
        pass

    def events(self, tokens: bytes) -> None:
        pass

    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None:
        pass


class Replay:
    """An engine core that schedules the requests of a recording; `run` or `lines` runs it."""

    def __init__(self, settings: ReplaySettings, inputs: ReplayInputs, checks: bool = False) -> None:
        asked, speculation = limits(settings.scheduler), settings.speculation
        drafts = NO_DRAFTS if speculation is None else speculation.asks(asked.async_scheduling)
        layout = PoolLayout(
            settings.kv_blocks,
            settings.block_size,
            settings.allocation,
            settings.max_model_len,
            drafting=drafts,
        )
        self.pool = build_pool(asked, layout)
        setup = PolicySetup(settings.scheduler, settings.kv_blocks, settings.max_model_len, speculation)
        self.policy = build_policy(setup, explicit=True)
        outputs = [request.output_tokens for request in inputs.requests]
        self.depth = 2 if asked.async_scheduling else 1
        context = BatchContext(0, self.pool, _NoLog(), outputs, self.depth, requeue=asked.requeue)
        self.batch = ExplicitBatch(context)
        if inputs.speculator is not None:
            self.batch.speculate(inputs.speculator)
        self.proposes = speculation is not None and self.depth == 1
        self._requests, self._law = inputs.requests, inputs.law
        self._checks = checks
        self._contents = inputs.contents if asked.prefix_caching else None
        self._next_token = speculation.next_token if speculation else 0

    def name(self, index: int) -> Any:
        """Return the recording's id of a request."""
        return self._requests[index].id

    def run(self) -> int:
        """Run to the end without lines; return the number of steps."""
        for _ in self._loop(None):
            pass
        return self.batch.completed

    def lines(self) -> Iterator[dict[str, Any]]:
        """Run to the end; yield every step as a line of a recording when it has ended."""
        lines: dict[int, dict[str, Any]] = {}

        def formed(step: ExplicitStep, now: int, start_ns: int) -> None:
            lines[step.index] = formed_line(step, self.name, now, start_ns, CoreState.of(self.batch))

        for step in self._loop(formed):
            yield complete_line(lines.pop(step.index), step, self.name, CoreState.of(self.batch), self.proposes)

    def _loop(self, formed: Callable[[ExplicitStep, int, int], None] | None) -> Iterator[ExplicitStep]:
        requests, batch, policy, pool, law = self._requests, self.batch, self.policy, self.pool, self._law
        queue: deque[ExplicitStep] = deque()
        now = busy = arrived = 0
        while True:
            while arrived < len(requests) and self._has_joined(requests[arrived], now):
                batch.add(self._sequence(arrived))
                arrived += 1
            if len(queue) < self.depth and (batch.order or batch.waiting):
                step = batch.advance(policy.schedule(batch, pool))
                if step is not None:
                    start_ns, step.end_ns = law.times(step, max(now, busy))
                    busy = step.end_ns
                    if formed is not None:
                        formed(step, now, start_ns)
                    if self._checks:
                        batch.check()
                    queue.append(step)
                    if step.total and len(queue) < self.depth:
                        continue
            if queue:
                step = queue.popleft()
                now = max(now, step.end_ns)
                batch.complete(step)
                yield step
            elif arrived < len(requests):
                now = requests[arrived].arrival_ns
                batch.add(self._sequence(arrived))  # no step is left, whatever its `behind_step`
                arrived += 1
            else:
                return

    def _has_joined(self, request: ReplayRequest, now: int) -> bool:
        """Return whether a call of the scheduler now includes the request."""
        if request.arrival_ns == now:
            return request.behind_step < self.batch.completed
        return request.arrival_ns < now

    def _sequence(self, index: int) -> TrackedSequence:
        request = self._requests[index]
        shared: Sequence[int] = ()
        if self._contents is not None:
            shared = self._contents.shared_keys(index, self.pool.block_size, self._next_token)
        rank = request.priority, request.arrival_ns
        return TrackedSequence(index, request.prompt_tokens, request.max_tokens, rank, shared)
