"""Run a scenario: build the parts, let the clock run, and return the columns."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.host import NO_FRONT_END, FrontEnd
from cost_models.shape import CostModel
from simulator.collection import no_garbage_collection
from simulator.engine.clock import Clock
from simulator.engine.exact_parts import exact_parts
from simulator.engine.fleet import Fleet, refusals
from simulator.engine.lazy import LazyBatch
from simulator.engine.log import RequestLog, step_columns
from simulator.engine.plain import PlainBatch
from simulator.engine.replica import Observer, Replica
from simulator.engine.sequences import content_maker, tracked_maker
from simulator.engine.source import build_source
from simulator.memory import build_pool
from simulator.results.record import RunRecord
from simulator.routing import build_router
from simulator.scenario.schema import Scenario
from simulator.scheduling import build_policy, limits, needs_exact
from simulator.workload.requests import RequestTable

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Service:
    """What the scenario's deployment comes to, in numbers: one pool of equal replicas."""

    cost: CostModel
    kv_blocks: int
    max_model_len: int
    gpus: int
    front_end: FrontEnd = NO_FRONT_END


def simulate(
    scenario: Scenario,
    table: RequestTable,
    service: Service,
    *,
    observers: Callable[[int], Observer] | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Run `table` through the scenario's deployment.

    `observers(replica)` makes the observer of a replica's steps; it needs the exact batch, which is then taken.
    `progress(now_ns, done)` is called now and then. Ctrl-C ends the run early, with `complete` False in the record.

    Raises:
        StalledError: the policy deadlocked.
    """
    clock = Clock()
    log = RequestLog(table)
    pool = scenario.deployment.pool
    pool_tokens = service.kv_blocks * pool.memory.block_size
    fleet = Fleet(
        clock,
        table,
        log,
        build_router(scenario.router, scenario.seed),
        refusals(table, service.max_model_len, pool_tokens, limits(pool.scheduler)),
        progress,
    )
    outputs = np.ascontiguousarray(table.output_tokens, np.int64).data
    if observers or _is_exact(scenario):
        fleet.sequence = tracked_maker(table, log, pool.memory.block_size)
    elif limits(pool.scheduler).prefix_caching:
        fleet.sequence = content_maker(table, pool.memory.block_size)
    for number in range(pool.replicas):
        fleet.add(
            _replica(number, scenario, service, clock, log, outputs, fleet, observers(number) if observers else None)
        )
    if scenario.run.horizon is not None:  # before the source, so that nothing is due first at that instant
        clock.stop_at(scenario.run.horizon)
    fleet.ended = build_source(clock, table, log, fleet.send).ended
    with no_garbage_collection(), _interruptible(clock) as interrupted:
        clock.run()
    if clock.exhausted():
        for replica in fleet.replicas:
            replica.check_progress()
    return _record(clock, fleet, log, table, scenario, service, complete=not interrupted)


def _replica(
    number: int,
    scenario: Scenario,
    service: Service,
    clock: Clock,
    log: RequestLog,
    outputs: memoryview,
    fleet: Fleet,
    observer: Observer | None,
) -> Replica:
    pool, run = scenario.deployment.pool, scenario.run
    asked = limits(pool.scheduler)
    depth, window = 2 if asked.async_scheduling else 1, service.cost.window
    batch: Any  # there are two families of batch and policy, each with a view of its own
    policy: Any
    if observer is not None or _is_exact(scenario):
        batch, policy, blocks = exact_parts(
            number, pool, service.kv_blocks, service.max_model_len, log, outputs, window
        )
    else:
        blocks = build_pool(
            asked, service.kv_blocks, pool.memory.block_size, True, pool.memory.allocation, service.max_model_len
        )
        kind = PlainBatch if run.engine == "plain" else LazyBatch
        batch = kind(number, blocks, log, outputs, depth, window, asked.requeue)
        policy = build_policy(pool.scheduler, service.kv_blocks)
    return Replica(
        clock,
        batch,
        policy,
        blocks,
        service.cost,
        service.front_end,
        depth,
        log,
        fleet.finished,
        observer,
        checks=run.checks,
    )


def _is_exact(scenario: Scenario) -> bool:
    """Does the scenario ask for the exact batch? It is also the loop to which prefix caching is compared."""
    scheduler = scenario.deployment.pool.scheduler
    compared = scenario.run.engine == "plain" and limits(scheduler).prefix_caching
    return compared or needs_exact(scheduler) is not None


def _record(
    clock: Clock,
    fleet: Fleet,
    log: RequestLog,
    table: RequestTable,
    scenario: Scenario,
    service: Service,
    complete: bool,
) -> RunRecord:
    for replica in fleet.replicas:
        replica.batch.close()
    pool = scenario.deployment.pool
    steps = step_columns([replica.steps for replica in fleet.replicas])
    segments = log.segments(steps)
    requests = log.columns(segments, steps)
    arrived = requests.client_ns[requests.client_ns >= 0]
    return RunRecord(
        requests=requests,
        segments=segments,
        steps=steps,
        class_names=table.class_names,
        replicas=pool.replicas,
        gpus=service.gpus,
        kv_blocks=service.kv_blocks,
        block_size=pool.memory.block_size,
        start_ns=int(arrived.min()) if len(arrived) else 0,
        end_ns=_last_event(requests.arrival_ns, steps.end_ns) if clock.exhausted() else clock._now,
        complete=complete,
    )


def _last_event(arrivals: NDArray[np.integer], ends: NDArray[np.integer]) -> int:
    return max(int(arrivals.max(initial=0)), int(ends.max(initial=0)))


@contextlib.contextmanager
def _interruptible(clock: Clock) -> Iterator[list[int]]:
    """While this lasts, Ctrl-C ends the clock's run between two events; the list is then no longer empty."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals  # signals reach the main thread only
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if signals:  # the second time it is meant
            raise KeyboardInterrupt
        signals.append(number)
        clock.stop()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)
