"""CPU memory behind the pool: its contents, the order of eviction, and writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.memory import CachingRules, OffloadingPool, OffloadTier, own_keys, text_keys
from simulator.scheduling import ContentSequence


def test_what_was_written_longest_ago_goes_first() -> None:
    tier = OffloadTier(3)
    tier.put([1, 2, 3])
    tier.put([4])
    assert (tier.find([1]), tier.find([2, 3, 4])) == ([], [2, 3, 4])
    assert (len(tier), tier.written, tier.dropped) == (3, 4, 1)


def test_what_is_there_is_not_written_again_and_stays_longer() -> None:
    tier = OffloadTier(3)
    tier.put([1, 2, 3])
    tier.put([1])
    tier.touch([2])
    tier.put([4])
    assert (tier.find([3]), tier.find([1, 2, 4]), tier.written) == ([], [1, 2, 4], 4)


def test_only_an_unbroken_run_is_found() -> None:
    tier = OffloadTier(9)
    tier.put([1, 2, 4])
    assert tier.find([1, 2, 3, 4]) == [1, 2]
    assert tier.find([3, 4]) == []


def test_a_tier_has_blocks() -> None:
    with pytest.raises(ValueError, match="blocks must be positive, not 0"):
        OffloadTier(0)


@settings(max_examples=50)
@given(blocks=st.integers(1, 8), writes=st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=30))
def test_blocks_are_conserved_and_the_newest_are_kept(blocks: int, writes: list[list[int]]) -> None:
    tier, newest = OffloadTier(blocks), list[int]()
    for keys in writes:
        tier.put(keys)
        tier.check()
        for key in keys:
            newest = [other for other in newest if other != key] + [key]
            newest = newest[-blocks:]
        assert sorted(newest) == [key for key in range(13) if tier.find([key])]


def test_a_broken_count_is_named() -> None:
    tier = OffloadTier(3)
    tier.put([1, 2])
    tier.written += 1
    with pytest.raises(AssertionError, match=r"3 written != 2 held \+ 0 dropped"):
        tier.check()


def hold(pool: OffloadingPool, index: int, tokens: int, shared_tokens: int) -> ContentSequence:
    """Return a sequence that has computed `tokens` tokens, the first of them those of text 0."""
    seq = ContentSequence(index, tokens, 1, shared=text_keys([(0, shared_tokens)], tokens, pool.block_size))
    pool.adopt(seq, pool.find(seq, 0))
    assert pool.grow(seq, tokens)
    pool.register(seq, tokens)
    return seq


@pytest.mark.parametrize("private", [False, True])
def test_write_through_copies_full_blocks_when_they_are_let_go(private: bool) -> None:
    tier = OffloadTier(9)
    pool = OffloadingPool(6, 4, tier, CachingRules(private=private))
    seq = hold(pool, 0, 18, 8)
    assert len(tier) == 0
    pool.retire(seq)
    keys = [*text_keys([(0, 8)], 18, 4), *own_keys(0, 2, 4)]  # the last two tokens fill no block
    assert tier.find(keys) == keys
    assert tier.written == 4
    small = OffloadTier(2)
    pool = OffloadingPool(6, 4, small, CachingRules(private=private))
    pool.retire(hold(pool, 0, 18, 8))
    assert small.find(keys) == keys[:2]  # the tail goes first


@pytest.mark.parametrize("private", [False, True])
def test_write_back_copies_what_the_gpu_loses_in_that_order(private: bool) -> None:
    tier = OffloadTier(9, write_through=False)
    pool = OffloadingPool(6, 4, tier, CachingRules(private=private))
    keys = [*text_keys([(0, 8)], 18, 4), *own_keys(0, 2, 4)]
    pool.retire(hold(pool, 0, 18, 8))
    assert len(tier) == 0
    other = hold(pool, 1, 16, 0)  # the block without content, the unused one, and two that had content
    assert tier.find(keys[3:]) == keys[3:]
    assert tier.find(keys[2:]) == keys[2:]
    assert (len(tier), tier.find(keys)) == (2, [])
    pool.check([other])


def test_a_block_in_use_elsewhere_is_copied_once() -> None:
    tier = OffloadTier(9)
    pool = OffloadingPool(6, 4, tier)
    first = hold(pool, 0, 8, 8)
    second = ContentSequence(1, 9, 1, shared=first.shared)
    pool.adopt(second, pool.find(second, 2))
    pool.retire(first)
    pool.retire(second)
    assert tier.written == 2
