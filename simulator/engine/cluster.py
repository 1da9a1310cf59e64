"""The serving side of a scenario, put together: the replicas of its pools, and what leads requests to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from simulator.common.randomness import stream
from simulator.engine.barrier import Barrier, LockstepCore
from simulator.engine.batches.build import exact_parts, fast_parts, needs_exact_for, speculation_of
from simulator.engine.batches.draft_counts import DraftCounts
from simulator.engine.batches.sequences import content_maker, plain_maker, tracked_maker
from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore, Observer
from simulator.engine.device import Pipeline
from simulator.engine.lifecycle import Fleet, Group, Maker
from simulator.engine.logs.request_log import OffloadLog, QuietLog, RequestLog, TransferLog
from simulator.engine.ranks import Tie, ties
from simulator.engine.service import Service
from simulator.engine.transfers.handover import Handovers
from simulator.engine.transfers.kv_transfer import KvLayout
from simulator.engine.transfers.links import Network
from simulator.engine.transfers.offload import Offloading
from simulator.memory import OffloadingPool
from simulator.network import Group as Placed
from simulator.network import Topology, build_topology
from simulator.results.record import DraftPositions, Ints, PoolFacts, TierFacts
from simulator.routing import build_decider, build_router
from simulator.scenario.handover import Handover
from simulator.scenario.schema import Pool, Scenario
from simulator.scheduling import Limits, limits
from simulator.workload.requests import RequestTable


class Cluster:
    """See the module's text. Replicas, or their ranks, are numbered through, pool after pool."""

    def __init__(
        self,
        scenario: Scenario,
        table: RequestTable,
        services: Sequence[Service],
        clock: Clock,
        log: RequestLog,
        transfers: TransferLog,
        offload: OffloadLog,
        fleet: Fleet,
        observers: Callable[[int], Observer] | None,
    ) -> None:
        self.replicas: list[EngineCore] = []
        self.pools: tuple[PoolFacts, ...] = ()
        self._scenario, self._table, self._services = scenario, table, services
        self._clock, self._log, self._fleet, self._observers = clock, log, fleet, observers
        self._offload = offload
        self._outputs = np.ascontiguousarray(table.output_tokens, np.int64).data
        self._one_token = np.ones(len(table), np.int64).data if scenario.deployment.handover is not None else None
        self._limits: dict[int, Limits] = {}  # by replica
        self._decode_tokens: dict[int, int] = {}  # by replica: those that a decode counts for in a step
        self._draft_counts: list[tuple[int, DraftCounts]] = []  # with the number of the replica
        self._handovers: Handovers | None = None
        whole = Group(build_router(scenario.router, scenario.seed))
        handover = scenario.deployment.handover
        if handover is None:
            fleet.place = fleet.serve_in(whole)
            self._fill({"both": whole}, {"both": fleet.finished_in(whole)})
        else:
            self._fill_apart(handover, whole, transfers)

    def check_progress(self) -> None:
        """Raise StalledError if something is unfinished; to be asked when nothing will ever happen again."""
        for replica in self.replicas:
            replica.check_progress()
        if self._handovers is not None:
            self._handovers.check_progress()

    def _fill_apart(self, handover: Handover, whole: Group, transfers: TransferLog) -> None:
        """Prefill and decode pools, and what leads from one to the other."""
        scenario, fleet = self._scenario, self._fleet
        prefill = Group(build_router(scenario.router, scenario.seed, "prefill"))
        decode = Group(build_router(handover.router or scenario.router, scenario.seed, "decode"))
        groups = {"both": whole, "prefill": prefill, "decode": decode}
        pools = scenario.deployment.pools.values()
        handovers = self._handovers = Handovers(
            self._clock,
            handover,
            fleet,
            self._log,
            transfers,
            (prefill, decode, whole if any(pool.role == "both" for pool in pools) else decode),
            build_decider(handover.decider),
            self._network,
            self._topology.route,
            self._layouts(handover),
            self._failures(handover),
            self._outputs,
            self._caches("decode") and not self._caches("prefill"),
        )
        ears = {
            "both": fleet.finished_in(whole),
            "prefill": handovers.prefilled,
            "decode": fleet.finished_in(decode),
        }
        self._fill(groups, ears)
        handovers.connect(self._limits, self._decode_tokens)
        fleet.place = handovers.place

    def _fill(self, groups: dict[str, Group], ears: dict[str, Any]) -> None:
        """Make the replicas of every pool; `groups` and `ears` by role."""
        pools: list[PoolFacts] = []
        for (name, pool), service in zip(self._scenario.deployment.pools.items(), self._services, strict=True):
            first, maker = len(self.replicas), self._maker(pool, service)
            for number, tie in enumerate(ties(pool, service.cost, service.lockstep, self._clock), start=first):
                replica = self._replica(number, pool, service, tie, ears[pool.role])
                self.replicas.append(replica)
                self._limits[number] = limits(pool.scheduler)
                speculation = speculation_of(pool)
                self._decode_tokens[number] = 1 if speculation is None else speculation.step_tokens
                groups[pool.role].add(replica, maker)
                if pool.memory.offload is not None:
                    replica.offloading = self._offloading(replica, pool, service)
            facts = (name, pool.role, first, pool.ranks, service.gpus, service.kv_blocks, pool.memory.block_size)
            pools.append(PoolFacts(*facts, stall_told=service.stall_told(pool)))
        self.pools = tuple(pools)

    def _maker(self, pool: Pool, service: Service) -> Maker:
        """Makes what a request is to the replicas of `pool`."""
        speculation = speculation_of(pool)
        next_token = 0 if speculation is None else speculation.next_token
        if self._observers is not None or self._is_exact(pool, service):
            return tracked_maker(self._table, self._log, pool.memory.block_size, next_token)
        if limits(pool.scheduler).prefix_caching:
            return content_maker(self._table, pool.memory.block_size, next_token)
        return plain_maker(self._table)

    def _replica(self, number: int, pool: Pool, service: Service, tie: Tie, finished: Any) -> EngineCore:
        run, log, outputs, handover = self._scenario.run, self._log, self._outputs, self._scenario.deployment.handover
        observer = self._observers(number) if self._observers is not None else None
        if pool.role == "prefill":
            assert handover is not None and self._one_token is not None
            outputs = self._one_token
            if handover.first_token != "prefill":
                log = QuietLog(log)
        barrier = tie if isinstance(tie, Barrier) else None
        if observer is not None or self._is_exact(pool, service):
            passes = None if barrier is None else lambda: barrier.passes
            parts = exact_parts(number, pool, service, log, outputs, passes)
        else:
            parts = fast_parts(number, pool, service, log, outputs, run.engine == "plain")
        if parts.counts is not None:
            self._draft_counts.append((number, parts.counts))
        replica = (EngineCore if barrier is None else LockstepCore)(
            self._clock,
            parts.batch,
            parts.policy,
            parts.blocks,
            service.cost,
            service.front_end,
            2 if limits(pool.scheduler).async_scheduling else 1,
            log,
            finished,
            observer,
            checks=run.checks,
            pipeline=tie if isinstance(tie, Pipeline) else None,
        )
        if barrier is not None:
            assert isinstance(replica, LockstepCore)
            barrier.join(replica)
        return replica

    def _is_exact(self, pool: Pool, service: Service) -> bool:
        """Whether a pool asks for the exact batch. Prefix caching and speculation are compared to it, too."""
        compares = limits(pool.scheduler).prefix_caching or pool.speculation is not None
        compared = self._scenario.run.engine == "plain" and compares
        return compared or needs_exact_for(pool, service, self._table) is not None

    def _offloading(self, replica: EngineCore, pool: Pool, service: Service) -> Offloading:
        settings, blocks = pool.memory.offload, replica.batch.pool
        assert settings is not None and isinstance(blocks, OffloadingPool)
        size = pool.memory.block_size
        layout = KvLayout(service.kv_token_bytes, service.layers, size, settings.descriptors_per_block)
        route, asked = self._topology.from_host(replica.number), limits(pool.scheduler)
        log, cost, network = self._offload, service.cost, self._network
        return Offloading(self._clock, replica, blocks, settings, asked, cost, network, route, layout, log)

    def draft_positions(self) -> DraftPositions:
        """What became of drafts, by replica and depth."""
        rows: list[Ints] = [np.zeros((6, 0), np.int64)]
        for number, counts in self._draft_counts:
            by_depth = counts.by_depth()
            depths = np.arange(by_depth.shape[1])
            rows.append(np.stack([np.full_like(depths, number), depths, *by_depth]))
        return DraftPositions(*np.concatenate(rows, axis=1))

    def tiers(self) -> tuple[TierFacts, ...]:
        """The CPU memory of the replicas that have some."""
        facts = []
        for pool, service in zip(self.pools, self._services, strict=True):
            block_bytes = service.kv_token_bytes * pool.block_size
            for number in range(pool.first, pool.first + pool.replicas):
                blocks = self.replicas[number].batch.pool
                if isinstance(blocks, OffloadingPool):
                    tier, (link,) = blocks.tier, self._topology.to_host(number)
                    rate = self._topology.links[link].bytes_per_s
                    facts.append(TierFacts(number, tier.blocks, tier.written, tier.dropped, block_bytes, rate))
        return tuple(facts)

    @cached_property
    def _network(self) -> Network:
        return Network(self._clock, self._topology.links, self._scenario.links.sharing)

    @cached_property
    def _topology(self) -> Topology:
        """The links between the replicas."""
        groups = []
        for pool, service in zip(self._scenario.deployment.pools.values(), self._services, strict=True):
            assert service.gpu_spec is not None
            groups.append(Placed(pool.ranks, pool.tensor_parallel, service.gpu_spec))
        return build_topology(groups, self._scenario.links)

    def _caches(self, role: str) -> bool:
        """Has a pool of that role a prefix cache?"""
        pools = self._scenario.deployment.pools.values()
        return any(pool.role == role and limits(pool.scheduler).prefix_caching for pool in pools)

    def _layouts(self, handover: Handover) -> Callable[[int, int], KvLayout]:
        """What transfers consist of, by source and target: blocks are the source's; each GPU of the target gets its
        part, or its copy."""
        pools = list(self._scenario.deployment.pools.values())

        def layout(source: int, target: int) -> KvLayout:
            service, receiver = self._services[source], self._services[target]
            pieces = handover.descriptors_per_block or service.layers * service.kv_parts
            return KvLayout(receiver.kv_token_bytes, service.layers, pools[source].memory.block_size, pieces)

        ranks = [pool.ranks for pool in pools]
        pool_of = np.repeat(np.arange(len(pools)), ranks).tolist()
        every = {
            (source, target): layout(source, target) for source in range(len(pools)) for target in range(len(pools))
        }
        return lambda source, target: every[pool_of[source], pool_of[target]]

    def _failures(self, handover: Handover) -> Callable[[int], int]:
        """How often the transfer of each request fails in a row: drawn for all requests, so that designs agree."""
        rate = handover.failure_rate
        if not rate:
            return lambda index: 0
        draws = stream(self._scenario.seed, "transfer failures").random(len(self._table))
        failures: list[int] = np.floor(np.log1p(-draws) / math.log(rate)).astype(np.int64).tolist()
        return failures.__getitem__
