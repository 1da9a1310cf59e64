"""Construction of the engine cores of a pool's replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from cost_models.shape import LockstepCost, StagedCost
from simulator.engine.batches.build import SchedulerFactory, needs_explicit_for
from simulator.engine.batches.sequences import content_maker, plain_maker, ranked_maker
from simulator.engine.context import RunContext
from simulator.engine.contracts import CoreParts, Listener
from simulator.engine.core import EngineCore
from simulator.engine.device import Pipeline
from simulator.engine.logs.request_log import QuietLog
from simulator.engine.observers import ConservationCheck
from simulator.engine.routing_group import SequenceFactory
from simulator.engine.service import Service
from simulator.scenario.schema import Pool, Scenario
from simulator.scheduling import RankedSequence, TrackedSequence, limits, speculation_of

if TYPE_CHECKING:
    from simulator.engine.barrier import Barrier
    from simulator.engine.batches.draft_counts import DraftCounts

C = TypeVar("C", bound=EngineCore)


class CoreFactory:
    """Factory of the engine cores of one pool; `draft_counts` are those of each core that speculates, by its number."""

    def __init__(self, scenario: Scenario, run: RunContext, pool: Pool, service: Service, listener: Listener) -> None:
        self.draft_counts: dict[int, DraftCounts] = {}
        self._scenario, self._run = scenario, run
        self._pool, self._service, self._listener = pool, service, listener
        self._log, table = run.logs.requests, run.table
        handover = scenario.deployment.handover
        if pool.role == "prefill":
            assert handover is not None
            table = replace(table, output_tokens=np.ones(len(table), np.int64))
            if handover.first_token != "prefill":
                self._log = QuietLog(self._log)
        self._explicit = self._is_explicit()
        self._schedulers = SchedulerFactory(pool, service, self._log, table, self._explicit)

    def sequences(self) -> SequenceFactory:
        """Return the factory of these cores' sequences."""
        speculation, run, size = speculation_of(self._pool), self._run, self._pool.memory.block_size
        next_token = 0 if speculation is None else speculation.next_token
        asked = limits(self._pool.scheduler)
        if self._explicit:
            return ranked_maker(TrackedSequence, run.table, run.logs.requests, size, next_token)
        if asked.by_priority:
            return ranked_maker(RankedSequence, run.table, run.logs.requests, size, next_token)
        if asked.prefix_caching:
            return content_maker(run.table, size, next_token)
        return plain_maker(run.table)

    def replicas(self, first: int) -> Iterator[list[EngineCore]]:
        """Yield the engine cores of each replica, numbered from `first` on."""
        pool = self._pool
        size = pool.data_parallel * pool.pipeline_parallel
        for start in range(first, first + pool.ranks, size):
            numbers = range(start, start + size)
            if pool.pipeline_parallel > 1:
                yield self._pipelines(numbers)
            elif self._service.lockstep:
                yield self._lockstep(numbers)
            else:
                yield [self._core(EngineCore, number) for number in numbers]

    def _pipelines(self, numbers: range) -> list[EngineCore]:
        """Build the engine cores of a replica's pipelines, one pipeline after the other."""
        from simulator.engine.pipeline_core import PipelineCore

        cores: list[EngineCore] = []
        for at, number in enumerate(numbers):
            if at % self._pool.pipeline_parallel == 0:
                pipeline = Pipeline(cast("StagedCost", self._service.cost))
            core = self._core(PipelineCore, number)
            core.share(pipeline)
            cores.append(core)
        return cores

    def _lockstep(self, numbers: range) -> list[EngineCore]:
        """Build the data-parallel ranks of a replica, which step together."""
        from simulator.engine.barrier import Barrier, LockstepCore

        depth = 2 if limits(self._pool.scheduler).async_scheduling else 1
        barrier = Barrier(self._run.clock, cast("LockstepCost", self._service.cost), depth)
        cores: list[EngineCore] = []
        for number in numbers:
            core = self._core(LockstepCore, number, barrier)
            barrier.join(core)
            cores.append(core)
        return cores

    def _core(self, kind: type[C], number: int, barrier: Barrier | None = None) -> C:
        run, service = self._run, self._service
        observer = None if run.observers is None else run.observers(number)
        if self._scenario.run.checks:
            observer = ConservationCheck(observer)
        passes = None if barrier is None else lambda: barrier.passes
        scheduler = self._schedulers.build(number, passes)
        if scheduler.counts is not None:
            self.draft_counts[number] = scheduler.counts
        parts = CoreParts(scheduler.batch, scheduler.policy, service.cost, service.front_end)
        return kind(run.clock, parts, self._log, self._listener, observer)

    def _is_explicit(self) -> bool:
        """Return whether the pool's cores have the explicit batch."""
        run, engine = self._run, self._scenario.run.engine
        why = needs_explicit_for(self._pool, self._service, run.table, self._scenario.deployment.handover)
        return run.observers is not None or engine == "explicit" or why is not None
