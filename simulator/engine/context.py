"""Objects shared by the parts of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.engine.clock import Clock
from simulator.engine.lifecycle import Lifecycle
from simulator.engine.logs.replica_log import ReplicaLog
from simulator.engine.logs.request_log import RequestLog
from simulator.engine.logs.transfer_log import OffloadLog, TransferLog
from simulator.engine.observers import Observer
from simulator.engine.shares import Share
from simulator.workload.requests import RequestTable


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of a run, except those of steps, which each engine core has."""

    requests: RequestLog
    transfers: TransferLog = field(default_factory=TransferLog)
    offload: OffloadLog = field(default_factory=OffloadLog)
    replicas: ReplicaLog = field(default_factory=ReplicaLog)


class RunContext(NamedTuple):
    """The clock, the requests, the logs and the lifecycle of a run.

    `observers(i)` returns the observer of engine core i; None if steps are not observed. `share` is the part of the
    requests that this process simulates; None for all.
    """

    clock: Clock
    table: RequestTable
    logs: Logs
    lifecycle: Lifecycle
    observers: Callable[[int], Observer] | None = None
    share: Share | None = None
