"""CPU memory that holds copies of KV blocks: its contents, and a pool with prefix caching that writes to it.

Contents are the keys of `memory/content.py`. Times of copies are modelled by the engine: here a written block is in CPU
memory at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from simulator.memory.content import own_keys
from simulator.memory.prefix import CachingRules, ContentHolder, PoolLayout, PoolLimits, PrefixPool

_DEFAULT_RULES = CachingRules()


class OffloadTier:
    """CPU memory for the contents of at most `blocks` blocks; if full, it drops the least recently written or loaded.

    With `write_through`, contents are written when a holder frees their blocks; else when the GPU's blocks are reused.
    A content that is there already is not written again. `written` and `dropped` count blocks.
    """

    __slots__ = ("_contents", "blocks", "dropped", "write_through", "written")

    def __init__(self, blocks: int, write_through: bool = True) -> None:
        if blocks < 1:
            raise ValueError(f"blocks must be positive, not {blocks}")
        self.blocks = blocks
        self.write_through = write_through
        self.written = self.dropped = 0
        self._contents: OrderedDict[int, None] = OrderedDict()  # the next one to be dropped is the first

    def __len__(self) -> int:
        return len(self._contents)

    def put(self, keys: Iterable[int]) -> None:
        """Write these contents, in this order. Those that are there already become the most recent ones."""
        contents = self._contents
        for key in keys:
            if key in contents:
                contents.move_to_end(key)
                continue
            contents[key] = None
            self.written += 1
            if len(contents) > self.blocks:
                contents.popitem(last=False)
                self.dropped += 1

    def find(self, keys: Iterable[int]) -> list[int]:
        """Return the longest run at the start of `keys` whose contents are there."""
        return list(takewhile(self._contents.__contains__, keys))

    def touch(self, keys: Iterable[int]) -> None:
        """Mark these contents, which must be there, as loaded now: they become the most recent ones."""
        for key in keys:
            self._contents.move_to_end(key)

    def check(self) -> None:
        """Raise AssertionError unless all written blocks are held or were dropped, and at most `blocks` are held."""
        held = len(self._contents)
        if self.written != held + self.dropped or held > self.blocks:
            raise AssertionError(
                f"offloaded blocks are not conserved: {self.written} written != {held} held + {self.dropped} dropped, "
                f"or more than {self.blocks} are held"
            )


class OffloadingPool(PrefixPool):
    """A `PrefixPool` that copies contents to `tier`: with write-through all the full blocks of a holder, last one
    first, when it frees them; else each block when it is taken from the free list.

    It records the contents of free blocks itself: in a private pool most of them cannot be found, but an engine copies
    them, since it does not know that they will not be needed.
    """

    __slots__ = ("_content", "tier")

    def __init__(self, blocks: int, block_size: int, tier: OffloadTier, rules: CachingRules = _DEFAULT_RULES) -> None:
        super().__init__(blocks, block_size, rules)
        self.tier = tier
        self._content: dict[int, int] = {}  # by block, since it was freed; for `write_back`

    def keys(self, holder: ContentHolder, first: int, end: int) -> Sequence[int]:
        """Return the contents of the blocks of `holder` from `first` to before `end`."""
        keys = holder.shared[first:end]
        if first + len(keys) == end:
            return keys
        return [*keys, *own_keys(holder.index, first + len(keys), end)]

    def check(self, holders: Iterable[ContentHolder]) -> None:  # type: ignore[override]
        super().check(holders)
        self.tier.check()

    def _give_back(self, holder: ContentHolder, findable: int) -> None:
        full = holder.registered
        if full:
            keys = self.keys(holder, 0, full)
            if self.tier.write_through:
                self.tier.put(reversed(keys))
            else:
                self._content.update(zip(holder.table[:full], keys, strict=True))
        super()._give_back(holder, findable)

    def _claim(self, count: int) -> list[int]:
        claimed = super()._claim(count)
        content = self._content
        if content:
            self.tier.put([content.pop(block) for block in claimed if block in content])
        return claimed


def build_offloading_pool(limits: PoolLimits, layout: PoolLayout, tier: OffloadTier) -> OffloadingPool:
    """Build the pool of a scheduler with prefix caching, which writes to `tier`."""
    return OffloadingPool(layout.blocks, layout.block_size, tier, CachingRules.of(limits, layout))
