"""The engine's loop without a clock: a recording's requests through the policy again, one step after the other.

Everything with `arrival_ns` <= now joins the queue; a step is scheduled if fewer than `depth` are under way; then the
oldest one ends. It is the loop that made the recordings, and what `EngineCore` does by way of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.engine.batches.base import BatchContext
from simulator.engine.batches.explicit import ExplicitBatch
from simulator.engine.batches.explicit_step import ExplicitStep, Speculator
from simulator.engine.logs.step_line import CoreState, complete_line, formed_line
from simulator.memory import NO_DRAFTS, Contents, PoolLayout, build_pool
from simulator.scenario.schedulers import Scheduler
from simulator.scenario.schema import Allocation
from simulator.scheduling import PolicySetup, Speculation, TrackedSequence, build_policy, limits


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One request of a recording. `output_tokens` is where it ends, `max_tokens` what the scheduler knows of that.

    `behind_step`: where the scheduler had been asked at the very moment of its arrival, before it, the step under way
    then, whose end comes first; else -1.
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
    """The engine of a recording; `kv_blocks` are the usable ones."""

    scheduler: Scheduler
    speculation: Speculation | None
    kv_blocks: int
    block_size: int
    max_model_len: int
    allocation: Allocation = "paged"


class TimeLaw(Protocol):
    """Returns the start of a step that could start at `ready_ns`, and its duration, both in ns."""

    def times(self, step: ExplicitStep, ready_ns: int) -> tuple[int, int]:
        """(start, end)."""


@dataclass(frozen=True, slots=True)
class ReplayInputs:
    """The requests of a recording, in order of arrival, with the contents of their prompts; the times of its steps; and
    the outcomes of its drafts."""

    requests: Sequence[ReplayRequest]
    contents: Contents
    law: TimeLaw
    speculator: Speculator | None = None


class _NoLog:
    """Takes token times, which are not needed."""

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None:
        pass

    def preempted(self, index: int, lost_tokens: int) -> None:
        pass

    def events(self, tokens: bytes) -> None:
        pass

    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None:
        pass


class Replay:
    """An engine core that runs through the requests of a recording. `lines` is the run."""

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
        """The recording's id of a request."""
        return self._requests[index].id

    def run(self) -> int:
        """Run to the end without looking; how many steps it took."""
        for _ in self._loop(None):
            pass
        return self.batch.completed

    def lines(self) -> Iterator[dict[str, Any]]:
        """Run, and yield every step as a line of a recording once it has ended."""
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
                batch.add(self._sequence(arrived))  # whatever it was behind in the record: nothing is left to do
                arrived += 1
            else:
                return

    def _has_joined(self, request: ReplayRequest, now: int) -> bool:
        """Whether the scheduler knows of the request when it is asked now."""
        if request.arrival_ns == now:
            return request.behind_step < self.batch.completed
        return request.arrival_ns < now

    def _sequence(self, index: int) -> TrackedSequence:
        request = self._requests[index]
        shared: Sequence[int] = ()
        if self._contents is not None:
            shared = self._contents.shared_keys(index, self.pool.block_size, self._next_token)
        return TrackedSequence(
            index, request.prompt_tokens, request.max_tokens, request.priority, request.arrival_ns, shared
        )
