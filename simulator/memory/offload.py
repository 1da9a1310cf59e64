"""CPU memory behind a pool with prefix caching: what is in it, and a pool that writes to it.

Contents are those of `memory/content.py`. Which of them are where decides what can be loaded; how long a copy takes is
the engine's business, and here a block that is written is there at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from simulator.memory.content import own_keys
from simulator.memory.prefix import Asked, CachingRules, PoolLayout, PrefixPool, Reader

_DEFAULT_RULES = CachingRules()


class OffloadTier:
    """The contents of at most `blocks` blocks; of more, the one that was written or loaded longest ago goes.

    `write_through`: contents come when a holder lets go of them; else when the GPU loses them. A content that is there
    already is not written again. `written` and `dropped` count blocks.
    """

    __slots__ = ("_contents", "blocks", "dropped", "write_through", "written")

    def __init__(self, blocks: int, write_through: bool = True) -> None:
        if blocks < 1:
            raise ValueError(f"blocks must be positive, not {blocks}")
        self.blocks = blocks
        self.write_through = write_through
        self.written = self.dropped = 0
        self._contents: OrderedDict[int, None] = OrderedDict()  # the next one to go first

    def __len__(self) -> int:
        return len(self._contents)

    def put(self, keys: Iterable[int]) -> None:
        """Write these contents, in this order; those that are there count as written now."""
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
        """The longest run at the start of `keys` that is there."""
        return list(takewhile(self._contents.__contains__, keys))

    def touch(self, keys: Iterable[int]) -> None:
        """These contents, which are there, are loaded: they go last."""
        for key in keys:
            self._contents.move_to_end(key)

    def check(self) -> None:
        """Raise AssertionError unless what was written is there or was dropped, and no more is there than may be."""
        held = len(self._contents)
        if self.written != held + self.dropped or held > self.blocks:
            raise AssertionError(
                f"offloaded blocks are not conserved: {self.written} written != {held} held + {self.dropped} dropped, "
                f"or more than {self.blocks} are held"
            )


class OffloadingPool(PrefixPool):
    """A `PrefixPool` that copies contents to `tier`: all the full blocks of a holder, tail first, as it lets go of
    them, or each block as it is taken from the free list, in that order.

    It keeps books of its own on what is in free blocks: in a private pool most of them cannot be found, and yet an
    engine, which knows nothing of the future, copies them.
    """

    __slots__ = ("_content", "tier")

    def __init__(self, blocks: int, block_size: int, tier: OffloadTier, rules: CachingRules = _DEFAULT_RULES) -> None:
        super().__init__(blocks, block_size, rules)
        self.tier = tier
        self._content: dict[int, int] = {}  # by block, since it was freed; for `write_back`

    def keys(self, holder: Reader, first: int, end: int) -> Sequence[int]:
        """The contents of the blocks of `holder` from `first` to before `end`."""
        keys = holder.shared[first:end]
        if first + len(keys) == end:
            return keys
        return [*keys, *own_keys(holder.index, first + len(keys), end)]

    def check(self, holders: Iterable[Reader]) -> None:  # type: ignore[override]
        super().check(holders)
        self.tier.check()

    def _give_back(self, holder: Reader, findable: int) -> None:
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


def build_offloading_pool(limits: Asked, layout: PoolLayout, tier: OffloadTier) -> OffloadingPool:
    """Build the pool of a scheduler with prefix caching, which writes to `tier`."""
    return OffloadingPool(layout.blocks, layout.block_size, tier, CachingRules.of(limits, layout))
