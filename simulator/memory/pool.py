"""The KV block pool. Without prefix caching blocks have no identity, so a count of the free ones is an exact model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class DraftNeeds(NamedTuple):
    """What speculation asks of a pool: blocks for up to `beyond` tokens past the last one of a request; and, if
    `drops_last`, that the last of the blocks that are found is left out, to be computed again."""

    beyond: int = 0
    drops_last: bool = False


NO_DRAFTS = DraftNeeds()


class Holder(Protocol):
    """Whatever holds blocks: a sequence."""

    blocks: int


class BlockPool:
    """`blocks` KV blocks of `block_size` tokens, of which `free` are held by no sequence.

    A policy that has added up the needs of many holders may `take` the blocks of all of them at once; each of these
    then gets its own by `settle`, when somebody looks at it. `check` holds the books to account.

    `find`, `adopt` and `register` are the verbs of prefix caching; here nothing is ever found.
    """

    __slots__ = ("block_size", "blocks", "free")

    #: Does a holder get, at once, the blocks of all that it could ever need?
    reserves = False

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"blocks and block_size must be positive, not {blocks} and {block_size}")
        self.blocks = blocks
        self.block_size = block_size
        self.free = blocks

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def demand(self, holder: Holder, tokens: int) -> int:
        """The blocks that `holder` has in all once it has grown to `tokens` tokens: more than these tokens fill where
        memory is reserved. All that asks what a sequence needs asks here."""
        return -(-tokens // self.block_size)

    def lacking(self, holder: Holder, tokens: int) -> int:
        """The blocks that `holder` would be given to grow to `tokens` tokens."""
        return max(0, self.demand(holder, tokens) - holder.blocks)

    def grow(self, holder: Holder, tokens: int) -> bool:
        """Give `holder` the blocks it lacks to hold `tokens` tokens in all; False, and nothing changes, if too few are
        free. The answer must be looked at; where it can only be True, `allocate`."""
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > self.free:
            return False
        if lacking > 0:
            self.free -= lacking
            holder.blocks += lacking
        return True

    def allocate(self, holder: Holder, tokens: int) -> None:
        """As `grow`, by a caller that has found the blocks to be there.

        Raises:
            AssertionError: they are not.
        """
        if not self.grow(holder, tokens):
            raise AssertionError(
                f"{holder} was found to fit, and there are no blocks for {tokens} tokens: it lacks "
                f"{self.lacking(holder, tokens)}, and {self.free} are free"
            )

    def take(self, blocks: int) -> None:
        """Take that many free blocks, which must be there, for holders that `settle` later."""
        self.free -= blocks

    def settle(self, holder: Holder, tokens: int, full: int) -> None:
        """Give `holder` the taken blocks that it lacks to hold `tokens` tokens in all, and register the first `full`
        tokens."""
        holder.blocks = -(-tokens // self.block_size)

    def find(self, holder: Holder, most: int) -> Sequence[int]:
        """The blocks that hold the start of `holder`'s text: the longest run of at most `most`."""
        return ()

    def fits(self, holder: Holder, hits: Sequence[int], tokens: int, spare: int = 0) -> bool:
        """Whether `holder`, which holds nothing, could grow to `tokens` tokens, with the found blocks `hits` among its
        own and `spare` blocks left free."""
        return self.demand(holder, tokens) + spare <= self.free

    def adopt(self, holder: Holder, hits: Sequence[int]) -> None:
        """Make `holder`, which holds nothing, a holder of the found blocks."""

    def register(self, holder: Holder, tokens: int) -> None:
        """Make the full blocks among the first `tokens` tokens of `holder` findable."""

    def release(self, holder: Holder) -> None:
        """Take back every block of `holder`."""
        self.free += holder.blocks
        holder.blocks = 0

    def retire(self, holder: Holder) -> None:
        """Take back every block of `holder`, whose request has ended: all of its prompt is computed."""
        self.release(holder)

    def check(self, holders: Iterable[Holder]) -> None:
        """Raise AssertionError unless held and free blocks add up to all of them."""
        held = sum(holder.blocks for holder in holders)
        if held + self.free != self.blocks or self.free < 0:
            raise AssertionError(f"blocks are not conserved: {held} held + {self.free} free != {self.blocks}")
