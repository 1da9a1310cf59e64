"""KV offload in a scenario: copies of KV blocks in CPU memory, and the lookup of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from simulator.scenario.quantities import Range, Size


@dataclass(frozen=True, slots=True)
class Offload:
    """CPU memory behind the KV memory of one replica; `capacity` bytes of it. Needs prefix caching.

    `policy`: blocks that are found there and not on the GPU are loaded over PCIe (`reload`), computed again
    (`recompute`), or whichever is expected to take less time (`cheaper`).

    `write`: a block is copied there as soon as it may be lost, that is when a sequence lets go of it (`write_through`:
    vLLM's OffloadingConnector and SGLang's HiCache, by default), or when it is pushed out of the GPU (`write_back`).
    A block is `descriptors_per_block` transfers; one, as in vLLM from 0.12 on, where it is contiguous over all layers.
    """

    capacity: Annotated[Size, Range(min=1)]
    policy: Literal["cheaper", "reload", "recompute"] = "cheaper"
    write: Literal["write_through", "write_back"] = "write_through"
    descriptors_per_block: Annotated[int, Range(min=1, max=10**6)] = 1
