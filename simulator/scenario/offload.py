"""KV offload in a scenario: copies of KV blocks in CPU memory, and the use of a copy that is found."""

from __future__ import annotations

from typing import Annotated, Literal

from simulator.scenario.quantities import Range, Size
from simulator.scenario.setting import setting


@setting()
class Offload:
    """CPU memory of `capacity` bytes for copies of the KV blocks of one replica. Needs prefix caching.

    `policy`: blocks that are found there and not on the GPU are loaded over PCIe (`reload`), computed again
    (`recompute`), or the one of both with the shorter expected time (`cheaper`).

    `write`: a block is copied when a sequence frees it (`write_through`: vLLM's OffloadingConnector and SGLang's
    HiCache, by default), or when the GPU's block is reused (`write_back`). The copy of a block takes
    `descriptors_per_block` transfers; one, as in vLLM from 0.12 on, where a block is contiguous over all layers.
    """

    capacity: Annotated[Size, Range(min=1)]
    policy: Literal["cheaper", "reload", "recompute"] = "cheaper"
    write: Literal["write_through", "write_back"] = "write_through"
    descriptors_per_block: Annotated[int, Range(min=1, max=10**6)] = 1
