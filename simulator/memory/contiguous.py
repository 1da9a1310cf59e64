"""KV memory in one piece a sequence, as before paging: all that it could ever need is reserved when it is admitted."""

from __future__ import annotations

from typing import Protocol, cast

from simulator.memory.pool import BlockPool, Holder


class Bounded(Holder, Protocol):
    """A holder that says how long it can get."""

    prompt_tokens: int
    max_tokens: int


class ContiguousPool(BlockPool):
    """Reserves `length` tokens for each holder, or its prompt and `max_tokens` if that is None; in whole blocks.

    What is reserved and never filled is the waste that Kwon et al. (SOSP '23, section 3.1) call reserved slots and
    internal fragmentation. Holes between pieces of unequal lengths (external fragmentation) are left out.
    """

    __slots__ = ("_length",)

    reserves = True

    def __init__(self, blocks: int, block_size: int, length: int | None = None) -> None:
        super().__init__(blocks, block_size)
        self._length = length

    def demand(self, holder: Holder, tokens: int) -> int:
        holder = cast(Bounded, holder)
        length = self._length or holder.prompt_tokens + holder.max_tokens
        return min(length, self.blocks * self.block_size)

    def grow(self, holder: Holder, tokens: int) -> bool:
        return holder.blocks > 0 or super().grow(holder, self.demand(holder, tokens))

    def settle(self, holder: Holder, tokens: int, full: int) -> None:
        pass
