"""The KV block pool. Without prefix caching blocks have no identity, so a count of the free ones is an exact model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class DraftNeeds(NamedTuple):
    """Needs of speculation: blocks for up to `beyond` tokens past the last one of a request. With `drops_last`, the
    last of the found blocks is not used, but computed again."""

    beyond: int = 0
    drops_last: bool = False


NO_DRAFTS = DraftNeeds()


class Holder(Protocol):
    """A holder of blocks: a sequence."""

    blocks: int


class BlockPool:
    """A pool of `blocks` KV blocks of `block_size` tokens, of which `free` are held by no sequence.

    A policy that has added up the needs of many holders may `take` the blocks of all of them at once; `settle` then
    gives each of them its own, when its state is needed. `check` verifies the counts.

    `find`, `adopt` and `register` serve prefix caching; here nothing is ever found.
    """

    __slots__ = ("block_size", "blocks", "free")

    #: Whether a holder gets all the blocks that it could ever need at once.
    reserves = False
    #: Whether blocks of earlier requests can be found; else `find`, `adopt` and `register` need not be called.
    caches = False

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"blocks and block_size must be positive, not {blocks} and {block_size}")
        self.blocks = blocks
        self.block_size = block_size
        self.free = blocks

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def demand(self, holder: Holder, tokens: int) -> int:
        """Return the number of blocks that `holder` has in all once it has grown to `tokens` tokens: more than these
        tokens fill where memory is reserved."""
        return -(-tokens // self.block_size)

    def lacking(self, holder: Holder, tokens: int) -> int:
        """Return the number of blocks that `holder` would be given to grow to `tokens` tokens."""
        return max(0, self.demand(holder, tokens) - holder.blocks)

    def grow(self, holder: Holder, tokens: int) -> bool:
        """Give `holder` the blocks that it lacks to hold `tokens` tokens in all, and return True; if too few are free,
        change nothing and return False. A caller that knows that they are free uses `allocate`."""
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > self.free:
            return False
        if lacking > 0:
            self.free -= lacking
            holder.blocks += lacking
        return True

    def allocate(self, holder: Holder, tokens: int) -> None:
        """Do as `grow`, for a caller that has checked that enough blocks are free.

        Raises:
            AssertionError: too few blocks are free.
        """
        if not self.grow(holder, tokens):
            raise AssertionError(
                f"{holder} was found to fit, and there are no blocks for {tokens} tokens: it lacks "
                f"{self.lacking(holder, tokens)}, and {self.free} are free"
            )

    def take(self, blocks: int) -> None:
        """Take that many blocks, which must be free, for holders that `settle` later."""
        self.free -= blocks

    def settle(self, holder: Holder, tokens: int, full: int) -> None:
        """Give `holder` those taken blocks that it lacks to hold `tokens` tokens in all, and register the first `full`
        tokens."""
        holder.blocks = -(-tokens // self.block_size)

    def find(self, holder: Holder, most: int) -> Sequence[int]:
        """Return the blocks that hold the start of `holder`'s text: the longest run, of at most `most` blocks."""
        return ()

    def fits(self, holder: Holder, hits: Sequence[int], tokens: int, spare: int = 0) -> bool:
        """Return whether `holder`, which holds nothing, could grow to `tokens` tokens, with the found blocks `hits`
        among its own and `spare` blocks left free."""
        return self.demand(holder, tokens) + spare <= self.free

    def adopt(self, holder: Holder, hits: Sequence[int]) -> None:
        """Give the found blocks to `holder`, which holds nothing; other holders keep them."""

    def register(self, holder: Holder, tokens: int) -> None:
        """Let `find` find the full blocks among the first `tokens` tokens of `holder`."""

    def release(self, holder: Holder) -> None:
        """Take back every block of `holder`."""
        self.free += holder.blocks
        holder.blocks = 0

    def retire(self, holder: Holder) -> None:
        """Take back every block of `holder`, whose request has ended: all of its prompt is computed."""
        self.release(holder)

    def check(self, holders: Iterable[Holder]) -> None:
        """Raise AssertionError unless held and free blocks add up to all blocks."""
        held = sum(holder.blocks for holder in holders)
        if held + self.free != self.blocks or self.free < 0:
            raise AssertionError(f"blocks are not conserved: {held} held + {self.free} free != {self.blocks}")
