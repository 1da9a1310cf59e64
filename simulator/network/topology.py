"""Topology of links: replicas on nodes, their NVLink, NICs and PCIe, and the routes between them.

Each link has one direction and belongs to a replica: it is as fast as the links of the replica's GPUs together. NICs
that several replicas share are one link for all of them. The fabric between nodes, and the switches within a node, are
assumed never to limit a transfer. Traffic of tensor parallelism is not modelled here: its time is part of the cost of a
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cost_models import GpuLink, GpuSpec
from simulator.scenario.links import Links, Nics, NvLink, Pcie


@dataclass(frozen=True, slots=True)
class Link:
    """A link in one direction. A transfer on it waits `latency_ns`, and `descriptor_ns` for each of its descriptors."""

    name: str
    bytes_per_s: int
    latency_ns: int = 0
    descriptor_ns: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas of one pool, all equal, on `gpus` GPUs each."""

    replicas: int
    gpus: int
    gpu: GpuSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs of a replica: `gpus` consecutive ones from number `first`. GPUs are numbered across all nodes."""

    first: int
    gpus: int

    def nodes(self, gpus_per_node: int) -> range:
        """Return the nodes of these GPUs."""
        return range(self.first // gpus_per_node, (self.first + self.gpus - 1) // gpus_per_node + 1)


@dataclass(frozen=True, slots=True)
class Ports:
    """The nodes of a replica and the numbers of its links, outwards and inwards; `nvlink` is None without NVLink."""

    nodes: range
    nvlink: tuple[int, int] | None
    network: tuple[tuple[int, ...], tuple[int, ...]]
    pcie: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Topology:
    """All links, and the ports of each replica. Replicas are numbered across all groups, in order."""

    links: tuple[Link, ...]
    ports: tuple[Ports, ...]

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one replica to another: NVLink within a node (PCIe without it), NICs between nodes.

        Raises ValueError if both are the same replica.
        """
        if source == target:
            raise ValueError(f"replica {source} has no links to itself")
        out, into = self.ports[source], self.ports[target]
        if out.nodes != into.nodes or len(out.nodes) > 1:
            return out.network[0] + into.network[1]
        if out.nvlink is None or into.nvlink is None:
            return out.pcie[0], into.pcie[1]
        return out.nvlink[0], into.nvlink[1]

    def to_host(self, replica: int) -> tuple[int, ...]:
        """Return the links from a replica's GPUs to the CPU memory of their node."""
        return (self.ports[replica].pcie[0],)

    def from_host(self, replica: int) -> tuple[int, ...]:
        """Return the links from the CPU memory to the replica's GPUs."""
        return (self.ports[replica].pcie[1],)


def place(groups: Sequence[Group], settings: Links) -> list[Placement]:
    """Place replicas on nodes, in order: each on the next consecutive free GPUs within one node.

    A replica that needs more GPUs than a node has gets whole nodes. A node holds one kind of GPU.
    """
    size = settings.gpus_per_node
    placed: list[Placement] = []
    free = 0
    for number, group in enumerate(groups):
        if number and (settings.placement == "apart" or group.gpu.name != groups[number - 1].gpu.name):
            free = _next_node(free, size)
        for _ in range(group.replicas):
            if free % size and free % size + group.gpus > size:
                free = _next_node(free, size)
            placed.append(Placement(free, group.gpus))
            free += group.gpus
            if group.gpus > size:
                free = _next_node(free, size)
    return placed


def build_topology(groups: Sequence[Group], settings: Links) -> Topology:
    """Build the links of replicas placed as `settings` says. Values that it leaves out are those of the GPUs' files."""
    builder = _Builder(
        settings, place(groups, settings), [group.gpu for group in groups for _ in range(group.replicas)]
    )
    return builder.build()


def capacity(settings: NvLink | Nics | Pcie, gpu: GpuLink) -> int:
    """Return the bytes a second that transfers reach on one link of a GPU (or NIC); 0 if there is none."""
    bandwidth = gpu.bandwidth if settings.bandwidth is None else settings.bandwidth
    reached = bandwidth * (gpu.share if settings.efficiency is None else settings.efficiency)
    return max(1, round(reached)) if bandwidth else 0


def _next_node(gpu: int, size: int) -> int:
    return -(-gpu // size) * size


class _Builder:
    """Collects the links of all replicas."""

    def __init__(self, settings: Links, placed: Sequence[Placement], gpus: Sequence[GpuSpec]) -> None:
        self._settings, self._placed, self._gpus = settings, placed, gpus
        self._links: list[Link] = []

    def build(self) -> Topology:
        networks = self._networks()
        ports = []
        for number, (placement, gpu) in enumerate(zip(self._placed, self._gpus, strict=True)):
            name, count = f"replica {number}", placement.gpus
            nvlink = capacity(self._settings.nvlink, gpu.nvlink)
            ports.append(
                Ports(
                    nodes=placement.nodes(self._settings.gpus_per_node),
                    nvlink=self._pair(f"{name} nvlink", count, self._settings.nvlink, gpu.nvlink) if nvlink else None,
                    network=networks[number],
                    pcie=self._pair(f"{name} pcie", count, self._settings.pcie, gpu.pcie),
                )
            )
        return Topology(tuple(self._links), tuple(ports))

    def _networks(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return, for each replica, the links of its NICs, outwards and inwards.

        Replicas that share NICs use one link for all the NICs of their group. A replica with fewer NICs than the group
        has a slower link of its own before it.
        """
        networks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for shared, members in self._neighbours():
            joint = self._nics(f"NICs {shared.start}-{shared.stop - 1}", members[0], len(shared))
            for number in members:
                own = self._own_nics(number)
                if len(own) == len(shared):
                    networks.append(((joint[0],), (joint[1],)))
                else:
                    mine = self._nics(f"replica {number} NICs", number, len(own))
                    networks.append(((mine[0], joint[0]), (mine[1], joint[1])))
        return networks

    def _neighbours(self) -> Iterator[tuple[range, list[int]]]:
        """Yield groups of consecutive replicas that share NICs: the NICs of a group, and its replicas."""
        nics, members = range(0), list[int]()
        for number in range(len(self._placed)):
            own = self._own_nics(number)
            if own.start < nics.stop:
                nics = range(nics.start, own.stop)
            else:
                if members:
                    yield nics, members
                nics, members = own, []
            members.append(number)
        if members:
            yield nics, members

    def _own_nics(self, number: int) -> range:
        """Return the NICs of a replica's GPUs, numbered across all nodes."""
        placement, size = self._placed[number], self._settings.gpus_per_node
        nics = self._settings.network.nics_per_node or size
        return range(placement.first * nics // size, -(-(placement.first + placement.gpus) * nics // size))

    def _nics(self, name: str, number: int, count: int) -> tuple[int, int]:
        return self._pair(name, count, self._settings.network, self._gpus[number].network)

    def _pair(self, name: str, count: int, settings: NvLink | Nics | Pcie, gpu: GpuLink) -> tuple[int, int]:
        """Add two links of `count` GPUs or NICs, outwards and inwards, and return their numbers."""
        latency = gpu.latency_ns if settings.latency is None else settings.latency
        for way in ("out", "in"):
            rate = count * capacity(settings, gpu)
            self._links.append(Link(f"{name} {way}", rate, latency, settings.per_descriptor))
        return len(self._links) - 2, len(self._links) - 1
