"""The links of a deployment: between its replicas, and to their CPU memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from simulator.common.randomness import stream
from simulator.engine.clock import Clock
from simulator.engine.service import Service
from simulator.engine.transfers.kv_transfer import KvLayout
from simulator.engine.transfers.links import Network
from simulator.engine.transfers.offload import HostLink
from simulator.engine.transfers.sender import TransferPaths
from simulator.network import Group, Topology, build_topology
from simulator.scenario.handover import Handover
from simulator.scenario.schema import Pool, Scenario


class Wiring:
    """The network of a deployment, built when it is first needed; the topology has the cores by their numbers."""

    def __init__(self, clock: Clock, scenario: Scenario, services: Sequence[Service]) -> None:
        self._clock, self._scenario, self._services = clock, scenario, services
        self._pools = list(scenario.deployment.pools.values())

    @cached_property
    def topology(self) -> Topology:
        """Links between engine cores."""
        groups = []
        for pool, service in zip(self._pools, self._services, strict=True):
            assert service.gpu_spec is not None
            groups.append(Group(pool.ranks, pool.tensor_parallel, service.gpu_spec))
        return build_topology(groups, self._scenario.links)

    @cached_property
    def network(self) -> Network:
        """Transfers over these links."""
        return Network(self._clock, self.topology.links, self._scenario.links.sharing)

    def host_link(self, number: int, pool: Pool, service: Service) -> HostLink:
        """Return the route from CPU memory to the GPUs of an engine core."""
        settings, size = pool.memory.offload, pool.memory.block_size
        assert settings is not None
        layout = KvLayout(service.kv_token_bytes, service.layers, size, settings.descriptors_per_block)
        return HostLink(self.network, self.topology.from_host(number), layout)

    def paths(self, handover: Handover, requests: int) -> TransferPaths:
        """Return the routes from prefill to decode cores, with the failures of `requests` requests."""
        return TransferPaths(
            self.network, self.topology.route, self._layouts(handover), self._failures(handover, requests)
        )

    def _layouts(self, handover: Handover) -> Callable[[int, int], KvLayout]:
        """Return the layout of transfers by source and target core.

        Blocks are those of the source; each GPU of the target gets its part, or its copy.
        """
        pools, services = self._pools, self._services

        def layout(source: int, target: int) -> KvLayout:
            service, receiver = services[source], services[target]
            pieces = handover.descriptors_per_block or service.layers * service.kv_parts
            return KvLayout(receiver.kv_token_bytes, service.layers, pools[source].memory.block_size, pieces)

        pool_of = np.repeat(np.arange(len(pools)), [pool.ranks for pool in pools]).tolist()
        every = {
            (source, target): layout(source, target) for source in range(len(pools)) for target in range(len(pools))
        }
        return lambda source, target: every[pool_of[source], pool_of[target]]

    def _failures(self, handover: Handover, requests: int) -> Callable[[int], int] | None:
        """Return the number of failed tries by request, drawn for all requests, so that designs have the same ones."""
        rate = handover.failure_rate
        if not rate:
            return None
        draws = stream(self._scenario.seed, "transfer failures").random(requests)
        failures: list[int] = np.floor(np.log1p(-draws) / math.log(rate)).astype(np.int64).tolist()
        return failures.__getitem__
