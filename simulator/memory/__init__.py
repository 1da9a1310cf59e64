"""KV memory of a replica: pools of blocks, and copies of blocks in CPU memory. No clock."""

from simulator.memory.content import Content, Contents, own_keys, text_keys
from simulator.memory.contiguous import ContiguousPool
from simulator.memory.offload import OffloadingPool, OffloadTier, build_offloading_pool
from simulator.memory.pool import NO_DRAFTS, BlockPool, DraftNeeds
from simulator.memory.prefix import CachingRules, PoolLayout, PrefixPool, build_pool

__all__ = [
    "NO_DRAFTS",
    "BlockPool",
    "CachingRules",
    "Content",
    "Contents",
    "ContiguousPool",
    "DraftNeeds",
    "OffloadTier",
    "OffloadingPool",
    "PoolLayout",
    "PrefixPool",
    "build_offloading_pool",
    "build_pool",
    "own_keys",
    "text_keys",
]
