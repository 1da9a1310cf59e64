"""A run of a scenario: construction of the parts, the clock's run, and the columns of the result."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.common.garbage import no_garbage_collection
from simulator.engine.admission import build_admission
from simulator.engine.clock import Clock
from simulator.engine.cluster import Cluster
from simulator.engine.context import Logs, RunContext
from simulator.engine.lifecycle import Lifecycle, Progress
from simulator.engine.logs.request_log import RequestLog
from simulator.engine.logs.step_log import step_columns
from simulator.engine.observers import Observer
from simulator.engine.service import Service
from simulator.engine.shares import Share
from simulator.engine.source import build_source
from simulator.errors import InputError
from simulator.results.record import RunRecord
from simulator.scenario.schema import Scenario
from simulator.workload.requests import RequestTable
from simulator.workload.tables import MAX_SECONDS, NS

_LATEST_NS = MAX_SECONDS * NS
_TOO_LONG = "the simulated time passes a century: check the units of times and rates, or end the run with run.horizon"


class Controls(NamedTuple):
    """Controls of a run in progress, for callbacks of the clock (`clock.at`)."""

    clock: Clock
    lifecycle: Lifecycle
    cluster: Cluster


def simulate(
    scenario: Scenario,
    table: RequestTable,
    services: Sequence[Service],
    *,
    observers: Callable[[int], Observer] | None = None,
    progress: Progress | None = None,
    control: Callable[[Controls], None] | None = None,
    share: Share | None = None,
) -> RunRecord:
    """Run `table` through the scenario's deployment; `services` are its pools, in their order.

    `observers(core)` returns the observer of an engine core's steps; the batch is then the explicit one.
    `progress(now_ns, done)` is called at intervals. `control` is called before the clock runs. Ctrl-C ends the run
    early, with `complete` False in the record. With `share` only its requests are sent.

    Raises:
        StalledError: the policy deadlocked.
        InputError: the simulated time passes a century; sums of times could then exceed 64 bits.
    """
    clock, logs = Clock(), Logs(RequestLog(table))
    lifecycle = Lifecycle(clock, logs.requests, build_admission(scenario, table, services), progress)
    run = RunContext(clock, table, logs, lifecycle, observers, share)
    try:
        cluster = Cluster(scenario, services, run)
        interrupted = _run(scenario, run, cluster, control)
    except OverflowError:  # a step or a think time whose end is not a 64-bit number
        raise InputError(_TOO_LONG) from None
    return _record(run, cluster, complete=not interrupted)


def _run(scenario: Scenario, run: RunContext, cluster: Cluster, control: Callable[[Controls], None] | None) -> bool:
    """Run the clock to the end; return True if Ctrl-C ended it."""
    clock, horizon = run.clock, scenario.run.horizon
    # Before the source, so that the stop is the first event of that time.
    clock.stop_at(_LATEST_NS if horizon is None else min(horizon, _LATEST_NS))
    requests = None if run.share is None else run.share.requests
    run.lifecycle.ended = build_source(clock, run.table, run.logs.requests, run.lifecycle.begin, requests).ended
    if control is not None:
        control(Controls(clock, run.lifecycle, cluster))
    with no_garbage_collection(), _interruptible(clock) as interrupted:
        clock.run()
    if clock.exhausted():
        cluster.check_progress()
    elif clock._now >= _LATEST_NS:
        raise InputError(_TOO_LONG)
    return bool(interrupted)


def _record(run: RunContext, cluster: Cluster, complete: bool) -> RunRecord:
    cores, clock, log = list(cluster.cores), run.clock, run.logs.requests
    for core in cores:
        core.batch.close()
    steps, drafts = step_columns([core.steps for core in cores], [core.cost for core in cores])
    segments = log.segments.columns(steps)
    event_tokens = log.segments.event_tokens(steps)
    requests = log.columns(segments, steps, event_tokens)
    log.clear()
    arrived = requests.client_ns[requests.client_ns >= 0]
    return RunRecord(
        requests=requests,
        segments=segments,
        preemptions=log.preemptions.columns(requests.replica),
        steps=steps,
        transfers=run.logs.transfers.columns(),
        offload=run.logs.offload.columns(),
        drafts=drafts,
        draft_positions=cluster.draft_positions(),
        replica_states=run.logs.replicas.columns(),
        event_tokens=event_tokens,
        pools=cluster.pools,
        tiers=cluster.tiers(),
        class_names=run.table.class_names,
        start_ns=int(arrived.min()) if len(arrived) else 0,
        end_ns=_last_event(requests.arrival_ns, steps.end_ns) if clock.exhausted() else clock._now,
        complete=complete,
    )


def _last_event(arrivals: NDArray[np.integer], ends: NDArray[np.integer]) -> int:
    return max(int(arrivals.max(initial=0)), int(ends.max(initial=0)))


@contextlib.contextmanager
def _interruptible(clock: Clock) -> Iterator[list[int]]:
    """Let Ctrl-C end the clock's run between two events within this context; the list then has its signal."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals  # only the main thread gets signals
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if signals:  # the second Ctrl-C interrupts at once
            raise KeyboardInterrupt
        signals.append(number)
        clock.stop()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGINT, before)
