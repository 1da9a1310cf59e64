"""The block pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.memory import BlockPool
from simulator.scheduling import SequenceState


def test_blocks_are_whole() -> None:
    pool = BlockPool(10, 16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17, 160)] == [0, 1, 1, 2, 10]


def test_a_holder_grows_to_what_it_lacks_or_not_at_all() -> None:
    pool, seq = BlockPool(4, 16), SequenceState(0, 100, 1)
    assert pool.grow(seq, 33)
    assert (seq.blocks, pool.free) == (3, 1)
    assert pool.grow(seq, 48)
    assert (seq.blocks, pool.free) == (3, 1)
    assert not pool.grow(seq, 65 + 16)
    assert (seq.blocks, pool.free) == (3, 1)
    pool.release(seq)
    assert (seq.blocks, pool.free) == (0, 4)


def test_what_was_found_to_fit_is_given_or_it_is_an_error() -> None:
    pool, seq = BlockPool(4, 16), SequenceState(0, 100, 1)
    assert (pool.lacking(seq, 33), pool.fits(seq, (), 33, spare=1), pool.fits(seq, (), 33, spare=2)) == (3, True, False)
    pool.allocate(seq, 33)
    assert (seq.blocks, pool.free, pool.lacking(seq, 20), pool.lacking(seq, 80)) == (3, 1, 0, 2)
    with pytest.raises(AssertionError, match=r"no blocks for 80 tokens: it lacks 2, and 1 are free"):
        pool.allocate(seq, 80)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=60), st.integers(1, 40), st.integers(1, 32))
def test_blocks_are_conserved(actions: list[tuple[int, int]], blocks: int, block_size: int) -> None:
    pool = BlockPool(blocks, block_size)
    holders = [SequenceState(i, 1, 1) for i in range(6)]
    for which, tokens in actions:
        holder = holders[which]
        if tokens:
            before = holder.blocks
            assert pool.grow(holder, tokens) == (
                pool.blocks_for(tokens) <= holder.blocks + pool.free or before != holder.blocks
            )
        else:
            pool.release(holder)
        pool.check(holders)


def test_the_check_shows_both_sides_of_the_sum() -> None:
    pool, seq = BlockPool(10, 16), SequenceState(0, 1, 1)
    pool.grow(seq, 32)
    seq.blocks = 3
    with pytest.raises(AssertionError, match=r"3 held \+ 8 free != 10"):
        pool.check([seq])


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (1, 0)])
def test_a_pool_has_blocks(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        BlockPool(blocks, size)
