"""Memory in one piece: all of it at admission, nothing after."""

from __future__ import annotations

import pytest

from simulator.memory import BlockPool, ContiguousPool, PoolLayout, PrefixPool, build_pool
from simulator.scheduling import Limits, SequenceState

PAGED = Limits(8, 100, None, chunked=True)


def test_the_first_tokens_bring_all_that_could_follow() -> None:
    pool, seq = ContiguousPool(20, 16), SequenceState(0, 100, 60)
    assert (pool.demand(seq, 1), pool.lacking(seq, 1)) == (10, 10)
    assert pool.fits(seq, (), 1, spare=10)
    assert not pool.fits(seq, (), 1, spare=11)
    assert pool.grow(seq, 1)
    assert (seq.blocks, pool.free, pool.lacking(seq, 160)) == (10, 10, 0)
    assert pool.grow(seq, 160)
    assert not pool.grow(seq, 161)  # the piece ends there, even if later blocks are free
    pool.settle(seq, 130, 130)
    assert (seq.blocks, pool.free) == (10, 10)
    pool.check([seq])
    pool.retire(seq)
    assert (seq.blocks, pool.free) == (0, 20)


def test_of_a_fixed_length_whatever_is_asked_for() -> None:
    pool, first, second = ContiguousPool(20, 16, length=176), SequenceState(0, 1, 1), SequenceState(1, 100, 60)
    assert pool.grow(first, 1)
    assert not pool.grow(second, 1)
    assert (first.blocks, second.blocks, pool.free) == (11, 0, 9)


def test_drafts_have_a_place_within_the_context() -> None:
    """Ten tokens past prompt and output, and no more than 168 in all; where a piece is of a fixed length, none."""
    near = ContiguousPool(20, 16, beyond=10, limit=168)
    assert near.demand(SequenceState(0, 100, 60), 1) == 11
    assert near.demand(SequenceState(0, 40, 3), 1) == 4
    assert ContiguousPool(20, 16, 160, beyond=10, limit=168).demand(SequenceState(0, 100, 60), 1) == 10


def test_more_than_the_whole_pool_never_fits() -> None:
    pool, seq = ContiguousPool(10, 16), SequenceState(0, 150, 30)
    assert pool.fits(seq, (), 160)
    assert not pool.fits(seq, (), 161)


def test_a_piece_is_never_more_than_the_whole_pool() -> None:
    """A request that fits except for the KV of its last token, which is not needed, can be served alone."""
    pool, seq = ContiguousPool(10, 16), SequenceState(0, 100, 61)
    assert pool.grow(seq, 100)
    assert (seq.blocks, pool.free) == (10, 0)


@pytest.mark.parametrize(
    ("limits", "allocation", "kind", "demand"),
    [
        (PAGED, "paged", BlockPool, 1),
        (PAGED._replace(prefix_caching=True), "paged", PrefixPool, 1),
        (PAGED, "contiguous", ContiguousPool, 32),
        (PAGED, "contiguous_exact", ContiguousPool, 10),
        (PAGED._replace(reserves=True), "paged", ContiguousPool, 10),
        (PAGED._replace(reserves=True), "contiguous", ContiguousPool, 32),
    ],
)
def test_the_pool_of_a_scheduler_and_an_allocation(limits: Limits, allocation: str, kind: type, demand: int) -> None:
    pool = build_pool(limits, PoolLayout(100, 16, allocation, 512))  # type: ignore[arg-type]
    assert type(pool) is kind
    assert pool.demand(SequenceState(0, 100, 60), 16) == demand
