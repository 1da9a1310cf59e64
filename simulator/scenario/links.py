"""The links over which replicas send KV: NVLink within a node, NICs between nodes, PCIe to the memory of the CPU.

Values that are left out (None) are those of the GPU's hardware file: line rates, the shares of them that copies reach,
and the time of a small copy. The costs of a descriptor are of the software; their sources are in docs/scenarios.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from simulator.scenario.numbers import StepDuration, TokenDuration
from simulator.scenario.quantities import Bandwidth, Range
from simulator.scenario.setting import setting

_LineRate = Annotated[Bandwidth, Range(min=1)]
_Share = Annotated[float, Range(above=0, max=1)]


@setting()
class NvLink:
    """NVLink of one GPU. `bandwidth` is its line rate in one direction; transfers reach a share `efficiency` of it.

    A transfer waits `latency`, and `per_descriptor` for each contiguous piece of memory, before its bytes flow.
    """

    bandwidth: _LineRate | None = None
    efficiency: _Share | None = None
    latency: StepDuration | None = None
    per_descriptor: TokenDuration = 1500


@setting()
class Nics:
    """NICs of a node: `nics_per_node` of them (None: one a GPU). `bandwidth` is that of one NIC in one direction.

    NICs are assigned to the node's GPUs in order: a GPU may have several, or share one with its neighbours.
    """

    bandwidth: _LineRate | None = None
    efficiency: _Share | None = None
    latency: StepDuration | None = None
    per_descriptor: TokenDuration = 500
    nics_per_node: Annotated[int, Range(min=1, max=64)] | None = None


@setting()
class Pcie:
    """PCIe between one GPU and its node's CPU memory, in one direction; also between GPUs of a node without NVLink."""

    bandwidth: _LineRate | None = None
    efficiency: _Share | None = None
    latency: StepDuration | None = None
    per_descriptor: TokenDuration = 1000


@setting()
class Links:
    """Links between replicas, and their sharing among transfers.

    `placement`: replicas fill nodes of `gpus_per_node` GPUs in the order of their pools (`packed`), or each pool starts
    on a new node (`apart`). `sharing`: transfers divide a link by max-min fairness (`max_min`), or use it one after the
    other (`fifo`).
    """

    gpus_per_node: Annotated[int, Range(min=1, max=1024)] = 8
    placement: Literal["packed", "apart"] = "packed"
    sharing: Literal["max_min", "fifo"] = "max_min"
    nvlink: NvLink = NvLink()
    network: Nics = Nics()
    pcie: Pcie = Pcie()
