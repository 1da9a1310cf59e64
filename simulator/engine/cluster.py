"""The cluster of a scenario: the replicas of its pools, and their routers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simulator.engine.context import RunContext
from simulator.engine.contracts import Listener
from simulator.engine.core import EngineCore
from simulator.engine.core_factory import CoreFactory
from simulator.engine.replica import Replica
from simulator.engine.routing_group import RoutingGroup, WholeRequests
from simulator.engine.service import Service
from simulator.engine.shares import AssignedRouter
from simulator.memory import OffloadingPool
from simulator.results.columns import DraftPositions, Ints
from simulator.results.record import PoolFacts, TierFacts
from simulator.routing import Router, build_decider, build_router
from simulator.scenario.handover import Handover
from simulator.scenario.schema import Pool, Scenario
from simulator.scheduling import limits, speculation_of

if TYPE_CHECKING:
    from simulator.engine.batches.draft_counts import DraftCounts
    from simulator.engine.transfers.handover import Handovers
    from simulator.engine.transfers.wiring import Wiring


class Cluster:
    """The replicas of all pools, and their engine cores, both numbered consecutively, pool after pool.

    `services` are the resolved settings of the pools, in their order.
    """

    def __init__(self, scenario: Scenario, services: Sequence[Service], run: RunContext) -> None:
        self.replicas: list[Replica] = []
        self.pools: tuple[PoolFacts, ...] = ()
        self._scenario, self._services, self._run = scenario, services, run
        self._draft_counts: dict[int, DraftCounts] = {}  # by core
        self._handovers: Handovers | None = None
        handover = scenario.deployment.handover
        router: Router = build_router(scenario.router, scenario.seed)
        if run.share is not None:
            router = AssignedRouter(run.share.core_of)
        whole = self._whole(RoutingGroup(router))
        if handover is None:
            run.lifecycle.place = whole.place
            self._fill({"both": whole.group}, {"both": whole})
        else:
            self._fill_apart(handover, whole)

    @property
    def cores(self) -> Iterator[EngineCore]:
        """The engine cores of all replicas."""
        return (core for replica in self.replicas for core in replica.cores)

    def check_progress(self) -> None:
        """Raise StalledError if a request is unfinished; for the end of a run, when no event is left."""
        for core in self.cores:
            core.batch.check_progress()
        if self._handovers is not None:
            self._handovers.check_progress()

    @cached_property
    def _wiring(self) -> Wiring:
        """The links, for deployments that hand KV over or copy it to CPU memory."""
        from simulator.engine.transfers.wiring import Wiring

        return Wiring(self._run.clock, self._scenario, self._services)

    def _whole(self, group: RoutingGroup) -> WholeRequests:
        return WholeRequests(group, self._run.lifecycle, self._run.logs.requests)

    def _fill_apart(self, handover: Handover, whole: WholeRequests) -> None:
        """Build prefill and decode pools, and the handover between them."""
        from simulator.engine.transfers.handover import HandoverGroups, HandoverLogs, Handovers

        scenario, run = self._scenario, self._run
        prefill = RoutingGroup(build_router(scenario.router, scenario.seed, "prefill"))
        decode = self._whole(RoutingGroup(build_router(handover.router or scenario.router, scenario.seed, "decode")))
        local = whole if any(pool.role == "both" for pool in scenario.deployment.pools.values()) else decode
        outputs = np.asarray(run.table.output_tokens, np.int64).data
        counts_hits = self._caches("decode") and not self._caches("prefill")
        handovers = self._handovers = Handovers(
            run.lifecycle,
            handover,
            HandoverGroups(prefill, decode, local, build_decider(handover.decider)),
            self._wiring.paths(handover, len(run.table)),
            HandoverLogs(run.logs.requests, run.logs.transfers, outputs, counts_hits),
        )
        run.lifecycle.place = handovers.place
        groups = {"both": whole.group, "prefill": prefill, "decode": decode.group}
        self._fill(groups, {"both": whole, "prefill": handovers, "decode": decode})

    def _fill(self, groups: dict[str, RoutingGroup], listeners: dict[str, Listener]) -> None:
        """Build the replicas of every pool; `groups` and `listeners` are by role."""
        pools: list[PoolFacts] = []
        first = 0
        for (name, pool), service in zip(self._scenario.deployment.pools.items(), self._services, strict=True):
            factory = CoreFactory(self._scenario, self._run, pool, service, listeners[pool.role])
            make, group = factory.sequences(), groups[pool.role]
            for cores in factory.replicas(first):
                for core in cores:
                    group.add(core, make)
                    self._connect(core, pool, service)
                self.replicas.append(Replica(len(self.replicas), cores, group, self._run.logs.replicas))
            self._draft_counts |= factory.draft_counts
            sizes = {"replicas": pool.replicas, "cores": pool.ranks, "gpus": service.gpus}
            memory = {"kv_blocks": service.kv_blocks, "block_size": pool.memory.block_size}
            pools.append(
                PoolFacts(name, pool.role, first, **sizes, **memory, records_stalls=service.records_stalls(pool))
            )
            first += pool.ranks
        self.pools = tuple(pools)

    def _connect(self, core: EngineCore, pool: Pool, service: Service) -> None:
        """Add the connectors of a core."""
        asked = limits(pool.scheduler)
        if pool.memory.offload is not None:
            from simulator.engine.transfers.offload import Offloading

            link = self._wiring.host_link(core.number, pool, service)
            core.connect(Offloading(core, pool.memory.offload, asked, link, self._run.logs.offload))
        if self._handovers is not None and pool.role == "prefill":
            self._handovers.connect_prefill(core)
        elif self._handovers is not None and pool.role == "decode":
            speculation = speculation_of(pool)
            self._handovers.connect_decode(core, asked, 1 if speculation is None else speculation.step_tokens)

    def _caches(self, role: str) -> bool:
        """Return whether a pool of that role has a prefix cache."""
        pools = self._scenario.deployment.pools.values()
        return any(pool.role == role and limits(pool.scheduler).prefix_caching for pool in pools)

    # --- the end

    def draft_positions(self) -> DraftPositions:
        """Return the outcomes of drafts, by core and depth."""
        rows: list[Ints] = [np.zeros((6, 0), np.int64)]
        for number, counts in self._draft_counts.items():
            by_depth = counts.by_depth()
            depths = np.arange(by_depth.shape[1])
            rows.append(np.stack([np.full_like(depths, number), depths, *by_depth]))
        return DraftPositions(*np.concatenate(rows, axis=1))

    def tiers(self) -> tuple[TierFacts, ...]:
        """Return the CPU memory of the cores that have some."""
        facts, cores = [], list(self.cores)
        for pool, service in zip(self.pools, self._services, strict=True):
            block_bytes = service.kv_token_bytes * pool.block_size
            for number in range(pool.first, pool.first + pool.cores):
                blocks = cores[number].batch.pool
                if isinstance(blocks, OffloadingPool):
                    tier, (link,) = blocks.tier, self._wiring.topology.to_host(number)
                    rate = self._wiring.topology.links[link].bytes_per_s
                    facts.append(TierFacts(number, tier.blocks, tier.written, tier.dropped, block_bytes, rate))
        return tuple(facts)
