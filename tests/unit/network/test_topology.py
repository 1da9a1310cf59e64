"""Replicas on nodes, and the links between them."""

from __future__ import annotations

import dataclasses

import pytest

from cost_models import load_gpu
from simulator.network import Group, Placement, Topology, build_topology, place
from simulator.scenario.links import Links, Nics, NvLink, Pcie

H100, A100, L40S = load_gpu("h100-sxm"), load_gpu("a100-sxm-80gb"), load_gpu("l40s")
GB = 10**9


def names(topology: Topology, route: tuple[int, ...]) -> list[str]:
    return [topology.links[link].name for link in route]


def rates(topology: Topology, route: tuple[int, ...]) -> list[int]:
    return [topology.links[link].bytes_per_s for link in route]


def test_replicas_fill_nodes_without_straddling_them() -> None:
    placed = place([Group(3, 3, H100)], Links())
    assert placed == [Placement(0, 3), Placement(3, 3), Placement(8, 3)]
    assert [list(each.nodes(8)) for each in placed] == [[0], [0], [1]]


def test_pools_share_nodes_or_stand_apart() -> None:
    pools = [Group(1, 2, H100), Group(2, 2, H100)]
    assert [each.first for each in place(pools, Links())] == [0, 2, 4]
    assert [each.first for each in place(pools, Links(placement="apart"))] == [0, 8, 10]


def test_a_node_holds_one_kind_of_gpu() -> None:
    assert [each.first for each in place([Group(1, 2, H100), Group(1, 2, A100)], Links())] == [0, 8]


def test_a_replica_larger_than_a_node_takes_whole_nodes() -> None:
    placed = place([Group(1, 2, H100), Group(1, 12, H100), Group(1, 2, H100)], Links())
    assert [list(each.nodes(8)) for each in placed] == [[0], [1, 2], [3]]


def test_within_a_node_transfers_take_nvlink() -> None:
    topology = build_topology([Group(1, 2, H100), Group(1, 4, H100)], Links(nvlink=NvLink(efficiency=1.0)))
    assert names(topology, topology.route(0, 1)) == ["replica 0 nvlink out", "replica 1 nvlink in"]
    assert rates(topology, topology.route(0, 1)) == [900 * GB, 1800 * GB]
    assert rates(topology, topology.route(1, 0)) == [1800 * GB, 900 * GB]


def test_without_nvlink_they_take_pcie() -> None:
    topology = build_topology([Group(2, 1, L40S)], Links(pcie=Pcie(bandwidth=25 * GB, efficiency=1.0)))
    assert topology.route(0, 1) == topology.to_host(0) + topology.from_host(1)
    assert rates(topology, topology.route(0, 1)) == [25 * GB, 25 * GB]


def test_a_scenario_may_give_nvlink_to_a_gpu_without() -> None:
    topology = build_topology([Group(2, 1, L40S)], Links(nvlink=NvLink(bandwidth=100 * GB)))
    assert names(topology, topology.route(0, 1)) == ["replica 0 nvlink out", "replica 1 nvlink in"]
    assert rates(topology, topology.route(0, 1)) == [100 * GB, 100 * GB]


def test_between_nodes_transfers_take_the_nics_of_the_replica() -> None:
    topology = build_topology([Group(1, 4, H100), Group(1, 2, H100)], Links(placement="apart"))
    assert names(topology, topology.route(0, 1)) == ["NICs 0-3 out", "NICs 8-9 in"]
    assert rates(topology, topology.route(0, 1)) == [4 * 35 * GB, 2 * 35 * GB]  # 0.7 of 400 Gb/s each


def test_a_replica_over_two_nodes_has_the_nics_of_both() -> None:
    topology = build_topology([Group(2, 16, H100)], Links())
    assert rates(topology, topology.route(0, 1)) == [16 * 35 * GB, 16 * 35 * GB]


def test_replicas_that_share_a_nic_share_one_link() -> None:
    """Two NICs for eight GPUs: each serves four."""
    links = Links(network=Nics(bandwidth=50 * GB, efficiency=1.0, nics_per_node=2))
    topology = build_topology([Group(8, 1, H100), Group(1, 8, H100)], links)
    routes = [topology.route(replica, 8) for replica in range(8)]
    assert routes[0] == routes[3] != routes[4] == routes[7]
    assert rates(topology, routes[0]) == [50 * GB, 100 * GB]


def test_a_replica_with_some_of_the_nics_that_are_shared_has_links_in_front() -> None:
    """Three GPUs a replica, four NICs for eight GPUs: GPUs 2 and 3, of two replicas, have the same NIC."""
    links = Links(network=Nics(bandwidth=50 * GB, efficiency=1.0, nics_per_node=4))
    topology = build_topology([Group(2, 3, H100), Group(1, 8, H100)], links)
    out = topology.ports[0].network[0]
    assert names(topology, out) == ["replica 0 NICs out", "NICs 0-2 out"]
    assert rates(topology, out) == [100 * GB, 150 * GB]
    assert topology.ports[1].network[0][1] == out[1]


def test_a_gpu_may_have_two_nics() -> None:
    links = Links(network=Nics(bandwidth=25 * GB, efficiency=1.0, nics_per_node=16), placement="apart")
    topology = build_topology([Group(1, 1, H100), Group(1, 1, H100)], links)
    assert rates(topology, topology.route(0, 1)) == [50 * GB, 50 * GB]


def test_the_cpu_memory_is_reached_over_the_pcie_of_all_gpus_of_the_replica() -> None:
    topology = build_topology([Group(1, 4, H100)], Links(pcie=Pcie(bandwidth=63 * GB, efficiency=0.5)))
    assert names(topology, topology.to_host(0) + topology.from_host(0)) == ["replica 0 pcie out", "replica 0 pcie in"]
    assert rates(topology, topology.to_host(0)) == [126 * GB]


def test_a_replica_has_no_links_to_itself() -> None:
    topology = build_topology([Group(1, 1, H100)], Links())
    with pytest.raises(ValueError, match="replica 0 has no links to itself"):
        topology.route(0, 0)


def test_no_two_replicas_have_the_same_ports() -> None:
    topology = build_topology([Group(5, 2, H100), Group(3, 4, A100)], Links())
    own = [link for ports in topology.ports for link in (*(ports.nvlink or ()), *ports.network[0], *ports.pcie)]
    assert len(own) == len(set(own)) == 8 * 5
    assert len({link.name for link in topology.links}) == len(topology.links) == 8 * 6


def test_what_the_scenario_leaves_out_is_the_gpus() -> None:
    topology = build_topology([Group(2, 1, H100), Group(1, 1, A100)], Links())
    inside, between = topology.route(0, 1), topology.route(0, 2)
    assert rates(topology, inside) == [360 * GB, 360 * GB]
    assert rates(topology, between) == [35 * GB, 17_500_000_000]
    assert topology.links[inside[0]].latency_ns == 5000
    assert [topology.links[link].latency_ns for link in between] == [17_000, 24_000]


def test_what_the_scenario_gives_is_taken() -> None:
    network = Nics(bandwidth=25 * GB, efficiency=0.8, latency=5000, per_descriptor=7)
    topology = build_topology([Group(2, 8, H100)], Links(network=network))
    link = topology.links[topology.route(0, 1)[0]]
    assert dataclasses.astuple(link) == ("NICs 0-7 out", 160 * GB, 5000, 7)
