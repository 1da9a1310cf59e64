"""Contiguous KV memory, as before paging: a sequence gets all the memory that it could need when it is admitted."""

from __future__ import annotations

from typing import Protocol, cast

from simulator.memory.pool import BlockPool, Holder


class Bounded(Holder, Protocol):
    """A holder with a known limit of its length."""

    prompt_tokens: int
    max_tokens: int


class ContiguousPool(BlockPool):
    """A pool that reserves `length` tokens for each holder or, if that is None, its prompt and `max_tokens`.

    Reservations are whole blocks, at most all of the pool. With speculation, steps compute up to `beyond` tokens past
    the last one of a request, within the context of `limit` tokens; if `length` is None, these are reserved, too.

    Reserved memory that is never filled is the waste that Kwon et al. (SOSP '23, section 3.1) call reserved slots and
    internal fragmentation. Gaps between reservations of unequal lengths (external fragmentation) are not modelled.
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
        """Return the number of tokens to reserve for `holder` when it is admitted."""
        if self._length is not None:
            return self._length
        most = holder.prompt_tokens + holder.max_tokens
        return most if self._limit is None else max(most, min(most + self._beyond, self._limit))

    def grow(self, holder: Holder, tokens: int) -> bool:
        if holder.blocks:  # its reservation cannot grow
            return tokens <= holder.blocks * self.block_size
        lacking = self.demand(holder, tokens)
        if lacking > self.free:
            return False
        self.free -= lacking
        holder.blocks = lacking
        return True

    def settle(self, holder: Holder, tokens: int, full: int) -> None:
        pass
