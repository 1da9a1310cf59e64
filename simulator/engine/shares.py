"""Shares of a run whose replicas do not depend on each other, for processes that simulate them side by side.

The choices of the router are made before the run. Each process has all replicas, and sends only the requests of its own
ones, so that everything that is numbered or drawn by request or by replica is the same as in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from simulator.engine.admission import build_admission
from simulator.engine.service import Service
from simulator.results.columns import Ints
from simulator.routing import Arrival, build_router
from simulator.routing.loads import L
from simulator.scenario.schema import Scenario
from simulator.workload.requests import RequestTable

#: Core of a request that is refused on arrival, which no router sees.
_REFUSED = -1


class Share(NamedTuple):
    """Requests of some engine cores: their indices, in ascending order, and the core of each request of the run."""

    requests: Ints
    core_of: Ints


class AssignedRouter:
    """Router whose choices are given: `core_of` has the number of the core by request."""

    uses_loads: ClassVar[bool] = False

    def __init__(self, core_of: Ints) -> None:
        self._core_of = core_of

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        return loads[int(self._core_of[request.index])]


class _OpenCore(NamedTuple):
    """An engine core for routers that use no loads."""

    number: int
    requests: int = 0
    waiting: int = 0
    known_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for routers."""

    index: int
    prompt_tokens: int
    max_tokens: int


def dependence(scenario: Scenario, table: RequestTable) -> str | None:
    """Return the setting by which replicas depend on each other, with the reason; None if they do not."""
    if scenario.deployment.handover is not None:
        return "deployment.handover: prefill and decode replicas share requests and links"
    if build_router(scenario.router, scenario.seed).uses_loads:
        return (
            f"router.policy: {scenario.router.TAG} chooses by the loads of all replicas; round_robin and random do not"
        )
    if table.max_concurrency is not None:
        return "workload.max_concurrency: the end of a request lets the next one start"
    if table.closed_loop is not None:
        return "workload.arrivals: in a closed loop a client waits for the end of its last request"
    if any(pool.memory.offload is not None for pool in scenario.deployment.pools.values()):
        return "memory.offload: replicas may share links to CPU memory"
    return None


def assign(scenario: Scenario, table: RequestTable, services: Sequence[Service]) -> Ints:
    """Return the number of the engine core of each request; -1 if it is refused on arrival."""
    admission = build_admission(scenario, table, services)
    router = build_router(scenario.router, scenario.seed)
    cores = [_OpenCore(number) for number in range(sum(pool.ranks for pool in scenario.deployment.pools.values()))]
    core_of = np.full(len(table), _REFUSED, np.int64)
    lengths = zip(table.prompt_tokens.tolist(), table.max_tokens.tolist(), strict=True)
    for index, (prompt, most) in enumerate(lengths):
        if not admission.refusal(index):
            chosen = router.choose(_Request(index, prompt, most), cores)
            assert chosen is not None  # a router without loads has no reason to refuse
            core_of[index] = chosen.number
    return core_of


def shares(scenario: Scenario, core_of: Ints, jobs: int) -> list[Share]:
    """Divide the replicas into at most `jobs` groups of successive ones; return the share of each.

    Requests that are refused belong to the first.
    """
    pools = scenario.deployment.pools.values()
    sizes = np.repeat([pool.ranks // pool.replicas for pool in pools], [pool.replicas for pool in pools])
    groups = np.array_split(np.arange(len(sizes)), min(jobs, len(sizes)))
    first_cores = np.cumsum(sizes) - sizes
    group_of = np.searchsorted(first_cores[[group[0] for group in groups]], core_of, "right") - 1
    group_of[core_of == _REFUSED] = 0
    return [Share(np.flatnonzero(group_of == number), core_of) for number in range(len(groups))]
