"""A run whose replicas do not depend on each other, simulated in several processes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

from simulator.common.parallel import cores, in_processes
from simulator.engine.lifecycle import Progress
from simulator.engine.merging import merged
from simulator.engine.service import Service
from simulator.engine.shares import Share, assign, shares
from simulator.engine.simulation import simulate
from simulator.results.columns import Status
from simulator.results.record import RunRecord
from simulator.scenario.schema import Scenario
from simulator.workload.requests import RequestTable


def simulate_side_by_side(
    scenario: Scenario, table: RequestTable, services: Sequence[Service], *, progress: Progress | None = None
) -> RunRecord:
    """Return the record that `simulate` returns, by `run.jobs` processes, at most one for each replica.

    `progress` is called when a process has finished. Ctrl-C ends the run without a record. Nothing may make the
    replicas depend on each other (`shares.dependence`).

    Raises:
        StalledError: the policy deadlocked.
        InputError: as for `simulate`.
    """
    jobs = cores() if scenario.run.jobs == "all" else scenario.run.jobs
    own = shares(scenario, assign(scenario, table, services), jobs)
    records, done = [], 0
    with _interruptible():
        for record in in_processes(_simulate, [(scenario, table, services, share) for share in own], len(own)):
            records.append(record)
            done += int((record.requests.status >= Status.COMPLETED).sum())
            if progress is not None:
                progress(record.end_ns, done)
    return merged(records, own)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within this context, whatever the caller does with it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _simulate(scenario: Scenario, table: RequestTable, services: Sequence[Service], share: Share) -> RunRecord:
    return simulate(scenario, table, services, share=share)
