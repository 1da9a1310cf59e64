"""Run a scenario: build the parts, let the clock run, and return the columns."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from simulator.common.garbage import no_garbage_collection
from simulator.engine.batches.build import speculation_of
from simulator.engine.clock import Clock
from simulator.engine.cluster import Cluster
from simulator.engine.core import Observer
from simulator.engine.lifecycle import Fleet, refusals
from simulator.engine.logs.request_log import OffloadLog, RequestLog, TransferLog
from simulator.engine.logs.step_log import step_columns
from simulator.engine.service import Service
from simulator.engine.source import build_source
from simulator.errors import InputError
from simulator.results.record import RunRecord
from simulator.scenario.schema import Scenario
from simulator.scheduling import limits
from simulator.workload.requests import RequestTable
from simulator.workload.tables import MAX_SECONDS, NS

Progress = Callable[[int, int], None]

_LATEST_NS = MAX_SECONDS * NS
_TOO_LONG = "the simulated time passes a century: check the units of times and rates, or end the run with run.horizon"


def simulate(
    scenario: Scenario,
    table: RequestTable,
    services: Sequence[Service],
    *,
    observers: Callable[[int], Observer] | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Run `table` through the scenario's deployment; `services` are its pools, in their order.

    `observers(replica)` makes the observer of a replica's steps; it needs the exact batch, which is then taken.
    `progress(now_ns, done)` is called now and then. Ctrl-C ends the run early, with `complete` False in the record.

    Raises:
        StalledError: the policy deadlocked.
        InputError: the simulated time passes a century, after which sums of times would leave 64 bits.
    """
    try:
        return _simulate(scenario, table, services, observers, progress)
    except OverflowError:  # a step or a pause that ends far beyond
        raise InputError(_TOO_LONG) from None


def _simulate(
    scenario: Scenario,
    table: RequestTable,
    services: Sequence[Service],
    observers: Callable[[int], Observer] | None,
    progress: Progress | None,
) -> RunRecord:
    clock, log, transfers, offload = Clock(), RequestLog(table), TransferLog(), OffloadLog()
    fleet = Fleet(clock, log, refused(scenario, table, services), progress)
    site = Cluster(scenario, table, services, clock, log, transfers, offload, fleet, observers)
    horizon = scenario.run.horizon
    # Before the source, so that nothing is due first at that instant.
    clock.stop_at(_LATEST_NS if horizon is None else min(horizon, _LATEST_NS))
    fleet.ended = build_source(clock, table, log, fleet.send).ended
    with no_garbage_collection(), _interruptible(clock) as interrupted:
        clock.run()
    if clock.exhausted():
        site.check_progress()
    elif clock._now >= _LATEST_NS:
        raise InputError(_TOO_LONG)
    return _record(clock, site, log, transfers, offload, table, complete=not interrupted)


def refused(scenario: Scenario, table: RequestTable, services: Sequence[Service]) -> NDArray[np.int8]:
    """For each request, the `Refusal` with which the service turns it away on arrival, or 0.

    Every pool must be able to serve it, since any may be its way; a prefill pool has it with one token of output.
    """
    reasons = np.zeros(len(table), np.int8)
    for pool, service in zip(scenario.deployment.pools.values(), services, strict=True):
        tokens = service.kv_blocks * pool.memory.block_size
        asked = (
            dataclasses.replace(table, max_tokens=np.ones_like(table.max_tokens)) if pool.role == "prefill" else table
        )
        speculation = speculation_of(pool)
        asks = limits(pool.scheduler)
        beyond = 0 if speculation is None else speculation.beyond(asks.async_scheduling)
        here = refusals(asked, service.max_model_len, tokens, asks, beyond)
        reasons = np.where(reasons == 0, here, reasons)
    return reasons


def _record(
    clock: Clock,
    site: Cluster,
    log: RequestLog,
    transfers: TransferLog,
    offload: OffloadLog,
    table: RequestTable,
    complete: bool,
) -> RunRecord:
    for replica in site.replicas:
        replica.batch.close()
    steps, drafts = step_columns(
        [replica.steps for replica in site.replicas], [replica.cost for replica in site.replicas]
    )
    segments = log.segments(steps)
    requests = log.columns(segments, steps)
    arrived = requests.client_ns[requests.client_ns >= 0]
    return RunRecord(
        requests=requests,
        segments=segments,
        preemptions=log.preemption_columns(),
        steps=steps,
        transfers=transfers.columns(),
        offload=offload.columns(),
        drafts=drafts,
        draft_positions=site.draft_positions(),
        event_tokens=log.event_tokens(steps),
        pools=site.pools,
        tiers=site.tiers(),
        class_names=table.class_names,
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
