"""The KV block pool with prefix caching: blocks have numbers, contents and a place in the free list.

The free list starts 1, 2, 3, ... and is taken from at the front. Blocks come back tail first: those without content
that could be found again to the front, the others to the back, where they stay findable until they are taken. (Older
engines put all of them to the back.) Block 0 is the engine's own and does not exist here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from simulator.memory.content import own_key
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
    """See the module's text. Several blocks may own one content; the one registered earliest is the one that is hit.

    What is taken has no content, so that it does not matter which of the taken blocks a holder gets: `take` keeps them
    aside until `settle` hands them out.
    """

    __slots__ = ("_extra", "_idle", "_key", "_owners", "_taken", "_unhashed", "_unhashed_first", "_used")

    def __init__(self, blocks: int, block_size: int, unhashed_first: bool = True) -> None:
        super().__init__(blocks, block_size)
        self._unhashed_first = unhashed_first
        self._used = 0  # blocks 1 to this have been taken at least once
        self._unhashed: list[int] = []  # the front of the free list, its first entry last; the unused blocks follow
        self._idle: OrderedDict[int, None] = OrderedDict()  # the back of the free list: free, and mostly with content
        self._key: dict[int, int] = {}  # content by block
        self._owners: dict[int, int | list[int]] = {}  # the blocks of a content, earliest first; mostly one
        self._extra: dict[int, int] = {}  # by block: holders beyond the first
        self._taken: list[int] = []  # neither free nor yet in a holder's table

    @property
    def hashed(self) -> int:
        """How many different contents can be found."""
        return len(self._owners)

    def free_list(self) -> list[int]:
        """The free blocks in the order in which they will be taken."""
        return [*reversed(self._unhashed), *range(self._used + 1, self.blocks + 1), *self._idle]

    def take(self, blocks: int) -> None:
        self.free -= blocks
        for _ in range(blocks):
            self._taken.append(self._take())

    def settle(self, holder: Reader, tokens: int, full: int) -> None:  # type: ignore[override]
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > 0:
            holder.table += self._taken[-lacking:]
            del self._taken[-lacking:]
            holder.blocks += lacking
        self.register(holder, full)

    def find(self, holder: Reader, most: int) -> list[int]:  # type: ignore[override]
        found: list[int] = []
        owners, shared, index = self._owners, holder.shared, holder.index
        for at in range(most):
            owner = owners.get(shared[at] if at < len(shared) else own_key(index, at))
            if owner is None:
                break
            found.append(owner if type(owner) is int else owner[0])  # type: ignore[index]
        return found

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

    def grow(self, holder: Holder, tokens: int) -> bool:
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > self.free:
            return False
        if lacking > 0:
            table: list[int] = holder.table  # type: ignore[attr-defined]
            for _ in range(lacking):
                table.append(self._take())
            self.free -= lacking
            holder.blocks += lacking
        return True

    def release(self, holder: Holder) -> None:
        table: list[int] = holder.table  # type: ignore[attr-defined]
        extra = self._extra
        for block in reversed(table):
            if block in extra:
                extra[block] -= 1
                if not extra[block]:
                    del extra[block]
                continue
            self.free += 1
            if block in self._key or not self._unhashed_first:
                self._idle[block] = None
            else:
                self._unhashed.append(block)
        table.clear()
        holder.blocks = holder.registered = 0  # type: ignore[attr-defined]

    def register(self, holder: Reader, tokens: int) -> None:  # type: ignore[override]
        full, shared = tokens // self.block_size, holder.shared
        for at in range(holder.registered, full):
            key, block = shared[at] if at < len(shared) else own_key(holder.index, at), holder.table[at]
            self._key[block] = key
            owner = self._owners.setdefault(key, block)
            if owner is not block:
                if type(owner) is int:
                    self._owners[key] = [owner, block]
                else:
                    owner.append(block)  # type: ignore[union-attr]
        if full > holder.registered:
            holder.registered = full

    def _take(self) -> int:
        if self._unhashed:
            return self._unhashed.pop()
        if self._used < self.blocks:
            self._used += 1
            return self._used
        block, _ = self._idle.popitem(last=False)
        if block in self._key:
            self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        key = self._key.pop(block)
        owner = self._owners[key]
        if owner == block:
            del self._owners[key]
            return
        assert isinstance(owner, list)
        owner.remove(block)
        if len(owner) == 1:
            self._owners[key] = owner[0]

    def check(self, holders: Iterable[Holder]) -> None:
        held: set[int] = set()
        total = 0
        for holder in holders:
            held.update(holder.table)  # type: ignore[attr-defined]
            total += holder.blocks
        if len(held) + self.free != self.blocks or total - len(held) != sum(self._extra.values()):
            raise AssertionError(
                f"blocks are not conserved: {len(held)} held + {self.free} free != {self.blocks}, or {total} holds != "
                f"{len(held)} + {sum(self._extra.values())} shared"
            )
        free = len(self._unhashed) + self.blocks - self._used + len(self._idle)
        if free != self.free:
            raise AssertionError(f"the free list has {free} blocks, the count says {self.free}")
