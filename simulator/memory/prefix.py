"""The KV block pool with prefix caching: blocks have numbers, contents and a place in the free list.

The free list starts 1, 2, 3, ... and is taken from at the front. Blocks come back tail first: those without content
that could be found again to the front, the others to the back, where they stay findable until they are taken. (Older
engines put all of them to the back.) Block 0 is the engine's own and does not exist here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol, cast

from simulator.memory.content import own_keys
from simulator.memory.pool import BlockPool, Holder
from simulator.scenario import schema


class Reader(Holder, Protocol):
    """A holder whose blocks have content; see `scheduling.ContentSequence`."""

    index: int
    shared: Sequence[int]
    table: list[int]
    registered: int
    cached: int


def build_pool(settings: schema.Scheduler, blocks: int, block_size: int) -> BlockPool:
    """The pool that the scenario's scheduler works on."""
    if not settings.enable_prefix_caching:
        return BlockPool(blocks, block_size)
    return PrefixPool(blocks, block_size, unhashed_first=settings.free_list == "unhashed_first")


class PrefixPool(BlockPool):
    """See the module's text. Several blocks may have one content; the one registered earliest is the one that is hit.

    What is taken has no content, so that it does not matter which of the taken blocks a holder gets: `take` keeps them
    aside until `settle` hands them out.
    """

    __slots__ = ("_extra", "_heirs", "_idle", "_key", "_owner", "_taken", "_unhashed", "_unhashed_first", "_used")

    def __init__(self, blocks: int, block_size: int, unhashed_first: bool = True) -> None:
        super().__init__(blocks, block_size)
        self._unhashed_first = unhashed_first
        self._used = 0  # blocks 1 to this have been taken at least once
        self._unhashed: list[int] = []  # the front of the free list, its first entry last; the unused blocks follow
        self._idle: OrderedDict[int, None] = OrderedDict()  # the back of the free list: free, and mostly with content
        self._key: dict[int, int] = {}  # content by block
        self._owner: dict[int, int] = {}  # by content: the block that is hit
        self._heirs: dict[int, list[int]] = {}  # by content: further blocks, earliest first; mostly there are none
        self._extra: dict[int, int] = {}  # by block: holders beyond the first
        self._taken: list[int] = []  # neither free nor yet in a holder's table

    @property
    def hashed(self) -> int:
        """How many different contents can be found."""
        return len(self._owner)

    def free_list(self) -> list[int]:
        """The free blocks in the order in which they will be taken."""
        return [*reversed(self._unhashed), *range(self._used + 1, self.blocks + 1), *self._idle]

    def take(self, blocks: int) -> None:
        self._taken += self._claim(blocks)

    def settle(self, holder: Reader, tokens: int, full: int) -> None:  # type: ignore[override]
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > 0:
            holder.table += self._taken[-lacking:]
            del self._taken[-lacking:]
            holder.blocks += lacking
        self.register(holder, full)

    def find(self, holder: Reader, most: int) -> list[int]:  # type: ignore[override]
        found = [*map(self._owner.get, holder.shared[:most])]
        if None in found:
            del found[found.index(None) :]
        elif len(found) < most:
            found += takewhile(_exists, map(self._owner.get, own_keys(holder.index, len(found), most)))
        return cast("list[int]", found)

    def fits(self, hits: Sequence[int], tokens: int, spare: int = 0) -> bool:
        idle = sum([block in self._idle for block in hits]) if hits else 0
        return -(-tokens // self.block_size) - len(hits) + idle + spare <= self.free

    def adopt(self, holder: Reader, hits: Sequence[int]) -> None:  # type: ignore[override]
        for block in hits:
            if block in self._idle:
                del self._idle[block]
                self.free -= 1
            else:
                self._extra[block] = self._extra.get(block, 0) + 1
        holder.table = list(hits)
        holder.blocks = holder.registered = len(hits)
        holder.cached = len(hits) * self.block_size

    def grow(self, holder: Reader, tokens: int) -> bool:  # type: ignore[override]
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > self.free:
            return False
        if lacking > 0:
            holder.table += self._claim(lacking)
            holder.blocks += lacking
        return True

    def release(self, holder: Reader) -> None:  # type: ignore[override]
        extra, idle, key, unhashed_first = self._extra, self._idle, self._key, self._unhashed_first
        freed = 0
        for block in reversed(holder.table):
            others = extra.get(block)
            if others is None:
                freed += 1
                if block in key or not unhashed_first:
                    idle[block] = None
                else:
                    self._unhashed.append(block)
            elif others == 1:
                del extra[block]
            else:
                extra[block] = others - 1
        self.free += freed
        holder.table.clear()
        holder.blocks = holder.registered = 0

    def register(self, holder: Reader, tokens: int) -> None:  # type: ignore[override]
        first, full = holder.registered, tokens // self.block_size
        if full <= first:
            return
        holder.registered = full
        blocks, keys = holder.table[first:full], [*holder.shared[first:full]]
        keys += own_keys(holder.index, first + len(keys), full)
        self._key.update(zip(blocks, keys, strict=True))
        for key, block in zip(keys, blocks, strict=True):
            if self._owner.setdefault(key, block) != block:
                self._heirs.setdefault(key, []).append(block)

    def _claim(self, count: int) -> list[int]:
        """The first `count` of the free list, which lose their contents."""
        self.free -= count
        claimed = self._unhashed[: -count - 1 : -1]
        del self._unhashed[len(self._unhashed) - len(claimed) :]
        unused = min(count - len(claimed), self.blocks - self._used)
        if unused:
            claimed += range(self._used + 1, self._used + unused + 1)
            self._used += unused
        for _ in range(count - len(claimed)):
            block, _ = self._idle.popitem(last=False)
            claimed.append(block)
            key = self._key.pop(block, None)
            if key in self._heirs:
                self._disown(key, block)
            elif key is not None:
                del self._owner[key]
        return claimed

    def _disown(self, key: int, block: int) -> None:
        """Of several blocks with one content, `block` is one no longer."""
        heirs = self._heirs[key]
        if self._owner[key] == block:
            self._owner[key] = heirs.pop(0)
        else:
            heirs.remove(block)
        if not heirs:
            del self._heirs[key]

    def check(self, holders: Iterable[Reader]) -> None:  # type: ignore[override]
        held: set[int] = set()
        total = 0
        for holder in holders:
            held.update(holder.table)
            total += holder.blocks
        if len(held) + self.free != self.blocks or total - len(held) != sum(self._extra.values()):
            raise AssertionError(
                f"blocks are not conserved: {len(held)} held + {self.free} free != {self.blocks}, or {total} holds != "
                f"{len(held)} + {sum(self._extra.values())} shared"
            )
        free = len(self._unhashed) + self.blocks - self._used + len(self._idle)
        if free != self.free:
            raise AssertionError(f"the free list has {free} blocks, the count says {self.free}")


def _exists(block: int | None) -> bool:
    return block is not None
