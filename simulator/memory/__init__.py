"""KV memory of a replica. Owns the free blocks; knows no clock."""

from simulator.memory.pool import BlockPool

__all__ = ["BlockPool"]
