"""KV memory in one piece a sequence, as before paging: all that it could ever need is reserved when it is admitted."""

from __future__ import annotations

from typing import Protocol, cast

from simulator.memory.pool import BlockPool, Holder


class Bounded(Holder, Protocol):
    """A holder that says how long it can get."""

    prompt_tokens: int
    max_tokens: int


class ContiguousPool(BlockPool):
    """Reserves `length` tokens for each holder, or its prompt and `max_tokens` if that is None; in whole blocks, and
    all blocks at most.

    With speculation steps compute up to `beyond` tokens past the last one of a request, within the context of `limit`
    tokens: in the second case these have a place, too.

    What is reserved and never filled is the waste that Kwon et al. (SOSP '23, section 3.1) call reserved slots and
    internal fragmentation. Holes between pieces of unequal lengths (external fragmentation) are left out.
    """

    __slots__ = ("_beyond", "_length", "_limit")

    reserves = True

    def __init__(
        self, blocks: int, block_size: int, length: int | None = None, beyond: int = 0, limit: int | None = None
    ) -> None:
        super().__init__(blocks, block_size)
        self._length = length
        self._beyond, self._limit = beyond, limit

    def demand(self, holder: Holder, tokens: int) -> int:
        reserved = min(self._reserved(cast(Bounded, holder)), self.blocks * self.block_size)
        return -(-max(reserved, tokens) // self.block_size)

    def _reserved(self, holder: Bounded) -> int:
        """Tokens for which `holder` needs a place from the beginning."""
        if self._length is not None:
            return self._length
        most = holder.prompt_tokens + holder.max_tokens
        return most if self._limit is None else max(most, min(most + self._beyond, self._limit))

    def grow(self, holder: Holder, tokens: int) -> bool:
        if holder.blocks:  # its piece cannot get longer
            return tokens <= holder.blocks * self.block_size
        lacking = self.demand(holder, tokens)
        if lacking > self.free:
            return False
        self.free -= lacking
        holder.blocks = lacking
        return True

    def settle(self, holder: Holder, tokens: int, full: int) -> None:
        pass
