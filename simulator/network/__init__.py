"""Links between replicas: the route of a transfer, and the rates of transfers that share links. No clock."""

from simulator.network.sharing import SHARING, Demand, Sharing, fifo, max_min
from simulator.network.topology import Group, Link, Placement, Ports, Topology, build_topology, capacity, place

__all__ = [
    "SHARING",
    "Demand",
    "Group",
    "Link",
    "Placement",
    "Ports",
    "Sharing",
    "Topology",
    "build_topology",
    "capacity",
    "fifo",
    "max_min",
    "place",
]
