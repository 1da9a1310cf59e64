"""The KV block pool with prefix caching: blocks have numbers, contents and a place in the free list.

The free list begins as 1, 2, 3, ...; blocks are taken from its front. A sequence gives its blocks back last one first:
blocks without content that could be found again go to the front, the others to the back, where they can be found until
they are taken. (Older engines put all of them at the back.) Block 0 is the engine's own and does not exist here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from typing import Literal, NamedTuple, Protocol, cast

from simulator.memory.content import own_keys
from simulator.memory.contiguous import ContiguousPool
from simulator.memory.pool import NO_DRAFTS, BlockPool, DraftNeeds, Holder


class ContentHolder(Holder, Protocol):
    """A holder whose blocks have content; see `scheduling.ContentSequence`. All holders of a `PrefixPool` are such."""

    index: int
    shared: Sequence[int]
    table: list[int]
    registered: int
    cached: int


class PoolLimits(Protocol):
    """The limits of a scheduler that decide its pool; see `scheduling.Limits`."""

    @property
    def prefix_caching(self) -> bool: ...
    @property
    def free_list(self) -> str: ...
    @property
    def reserves(self) -> bool: ...


class PoolLayout(NamedTuple):
    """The memory of an engine core: its blocks, each of `block_size` tokens, and their allocation.

    Contiguous memory has `max_model_len` tokens a sequence, or with `contiguous_exact` as many as its request could
    need. A `private` pool serves a lazy batch (see `PrefixPool`); `drafting` holds the needs of speculation.
    """

    blocks: int
    block_size: int
    allocation: Literal["paged", "contiguous", "contiguous_exact"] = "paged"
    max_model_len: int | None = None
    private: bool = False
    drafting: DraftNeeds = NO_DRAFTS


class CachingRules(NamedTuple):
    """Rules of a pool with prefix caching; see `PrefixPool`."""

    unhashed_first: bool = True
    private: bool = False
    drops_last: bool = False

    @classmethod
    def of(cls, limits: PoolLimits, layout: PoolLayout) -> CachingRules:
        """Return the rules of a scheduler with these limits."""
        return cls(limits.free_list == "unhashed_first", layout.private, layout.drafting.drops_last)


def build_pool(limits: PoolLimits, layout: PoolLayout) -> BlockPool:
    """Build the pool of a scheduler with these limits."""
    blocks, size = layout.blocks, layout.block_size
    if layout.allocation != "paged" or limits.reserves:
        length = layout.max_model_len if layout.allocation == "contiguous" else None
        return ContiguousPool(blocks, size, length, layout.drafting.beyond, layout.max_model_len)
    if not limits.prefix_caching:
        return BlockPool(blocks, size)
    return PrefixPool(blocks, size, CachingRules.of(limits, layout))


_DEFAULT_RULES = CachingRules()


class PrefixPool(BlockPool):
    """A block pool with prefix caching. Several blocks may have the same content; the one registered first is found.

    Taken blocks have no content, so that it does not matter which of them a holder gets: `take` keeps them apart until
    `settle` gives them to holders.

    In a `private` pool, only a request itself searches for its own content, when it returns from a preemption. So its
    content can be found after `release`, and not at all after `retire`: the full blocks then go to the back of the
    free list, like others, but as one run. With `drops_last`, the last of the matching blocks is not found.
    """

    caches = True

    __slots__ = (
        "_drops_last",
        "_extra",
        "_heirs",
        "_idle",
        "_key",
        "_owner",
        "_private",
        "_run",
        "_taken",
        "_unhashed",
        "_unhashed_first",
        "_used",
    )

    def __init__(self, blocks: int, block_size: int, rules: CachingRules = _DEFAULT_RULES) -> None:
        super().__init__(blocks, block_size)
        unhashed_first, private, drops_last = rules
        self._unhashed_first = unhashed_first
        self._private = private
        self._drops_last = drops_last
        self._used = 0  # blocks 1 to this have been taken at least once
        # The free list has four parts. Its first entry is the last one of `_unhashed`, if there is one.
        self._unhashed: list[int] = []  # blocks without content; never used blocks are the second part
        self._run: list[int] = []  # the third part: the rest of a run, its first block last
        #: The last part: blocks that can be found; and runs of others, each under the number of its first block.
        self._idle: OrderedDict[int, list[int] | None] = OrderedDict()
        self._key: dict[int, int] = {}  # content by block
        self._owner: dict[int, int] = {}  # by content: the block that is hit
        self._heirs: dict[int, list[int]] = {}  # by content: further blocks, earliest first; mostly there are none
        self._extra: dict[int, int] = {}  # by block: holders beyond the first
        self._taken: list[int] = []  # neither free nor yet in a holder's table

    @property
    def hashed(self) -> int:
        """The number of different contents that can be found."""
        return len(self._owner)

    def free_list(self) -> list[int]:
        """Return the free blocks in the order in which they will be taken."""
        runs = [[block] if run is None else run[::-1] for block, run in self._idle.items()]
        unused = range(self._used + 1, self.blocks + 1)
        return [*reversed(self._unhashed), *unused, *reversed(self._run), *chain.from_iterable(runs)]

    def take(self, blocks: int) -> None:
        self._taken += self._claim(blocks)

    def settle(self, holder: ContentHolder, tokens: int, full: int) -> None:  # type: ignore[override]
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > 0:
            holder.table += self._taken[-lacking:]
            del self._taken[-lacking:]
            holder.blocks += lacking
        self.register(holder, full)

    def find(self, holder: ContentHolder, most: int) -> list[int]:  # type: ignore[override]
        found = [*map(self._owner.get, holder.shared[:most])]
        if None in found:
            del found[found.index(None) :]
        elif len(found) < most:
            found += takewhile(_exists, map(self._owner.get, own_keys(holder.index, len(found), most)))
        if self._drops_last and found:
            del found[-1]
        return cast("list[int]", found)

    def fits(self, holder: Holder, hits: Sequence[int], tokens: int, spare: int = 0) -> bool:
        needed = -(-tokens // self.block_size) + spare
        return needed <= self.free or needed - len(hits) + sum(map(self._idle.__contains__, hits)) <= self.free

    def adopt(self, holder: ContentHolder, hits: Sequence[int]) -> None:  # type: ignore[override]
        for block in hits:
            if block in self._idle:
                del self._idle[block]
                self.free -= 1
            else:
                self._extra[block] = self._extra.get(block, 0) + 1
        holder.table = list(hits)
        holder.blocks = holder.registered = len(hits)
        holder.cached = len(hits) * self.block_size

    def grow(self, holder: ContentHolder, tokens: int) -> bool:  # type: ignore[override]
        lacking = -(-tokens // self.block_size) - holder.blocks
        if lacking > self.free:
            return False
        if lacking > 0:
            holder.table += self._claim(lacking)
            holder.blocks += lacking
        return True

    def release(self, holder: ContentHolder) -> None:  # type: ignore[override]
        first, full = self._first_own(holder), holder.registered
        if first < full:
            self._publish(own_keys(holder.index, first, full), holder.table[first:full])
        self._give_back(holder, full)

    def retire(self, holder: ContentHolder) -> None:  # type: ignore[override]
        self._give_back(holder, min(self._first_own(holder), holder.registered))  # less if its KV never came

    def register(self, holder: ContentHolder, tokens: int) -> None:  # type: ignore[override]
        first, full = holder.registered, tokens // self.block_size
        if full <= first:
            return
        holder.registered = full
        keys = holder.shared[first:full]
        if not self._private:
            keys = [*keys, *own_keys(holder.index, first + len(keys), full)]
        if keys:
            self._publish(keys, holder.table[first : first + len(keys)])

    def _first_own(self, holder: ContentHolder) -> int:
        """Return the index in `table` of the first registered block that cannot be found yet."""
        return max(len(holder.shared), holder.cached // self.block_size) if self._private else holder.registered

    def _publish(self, keys: Sequence[int], blocks: Sequence[int]) -> None:
        """Let the blocks be found by these keys."""
        self._key.update(zip(blocks, keys, strict=True))
        for key, block in zip(keys, blocks, strict=True):
            if self._owner.setdefault(key, block) != block:
                self._heirs.setdefault(key, []).append(block)

    def _give_back(self, holder: ContentHolder, findable: int) -> None:
        """Free the blocks that no other sequence holds, last one first. Only the first `findable` ones can be found."""
        table, extra, idle = holder.table, self._extra, self._idle
        run, partial = table[findable : holder.registered], table[holder.registered :]
        if self._unhashed_first:
            self._unhashed += reversed(partial)
        else:
            run += partial
        if run:
            idle[run[0]] = run
        freed = len(table) - findable
        for block in reversed(table[:findable]):
            others = extra.get(block)
            if others is None:
                freed += 1
                idle[block] = None
            elif others == 1:
                del extra[block]
            else:
                extra[block] = others - 1
        self.free += freed
        table.clear()
        holder.blocks = holder.registered = 0

    def _claim(self, count: int) -> list[int]:
        """Take the first `count` blocks off the free list; they lose their contents."""
        self.free -= count
        claimed = _pop(self._unhashed, count) if self._unhashed else []
        unused = min(count - len(claimed), self.blocks - self._used)
        if unused:
            claimed += range(self._used + 1, self._used + unused + 1)
            self._used += unused
        while len(claimed) < count:
            if self._run:
                claimed += _pop(self._run, count - len(claimed))
                continue
            block, run = self._idle.popitem(last=False)
            if run is not None:
                self._run = run
                continue
            claimed.append(block)
            key = self._key.pop(block)
            if key in self._heirs:
                self._disown(key, block)
            else:
                del self._owner[key]
        return claimed

    def _disown(self, key: int, block: int) -> None:
        """Remove `block` from the several blocks with one content."""
        heirs = self._heirs[key]
        if self._owner[key] == block:
            self._owner[key] = heirs.pop(0)
        else:
            heirs.remove(block)
        if not heirs:
            del self._heirs[key]

    def check(self, holders: Iterable[ContentHolder]) -> None:  # type: ignore[override]
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
        free = len(self._unhashed) + self.blocks - self._used + len(self._run)
        free += sum(1 if run is None else len(run) for run in self._idle.values())
        if free != self.free:
            raise AssertionError(f"the free list has {free} blocks, the count says {self.free}")


def _pop(stack: list[int], most: int) -> list[int]:
    """Take at most `most` entries off the end of the stack, and return them, the last one first."""
    popped = stack[: -most - 1 : -1]
    del stack[len(stack) - len(popped) :]
    return popped


def _exists(block: int | None) -> bool:
    return block is not None
