"""The pool with prefix caching; expected numbers are those of vLLM's own tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.memory import CachingRules, Content, Contents, PrefixPool, own_keys, text_keys
from simulator.scheduling import TrackedSequence


def reader(index: int, tokens: int, shared_tokens: int = 0, text: int = 0) -> TrackedSequence:
    """Return a sequence of `tokens` tokens, the first `shared_tokens` of which are those of `text`."""
    return TrackedSequence(index, tokens, 100, shared=text_keys([(text, shared_tokens)], tokens, 16))


def take(pool: PrefixPool, seq: TrackedSequence) -> bool:
    """Admit `seq` as the scheduler does, computing all of it; False if it does not fit."""
    hits = pool.find(seq, (seq.known - 1) // pool.block_size)
    if not pool.fits(seq, hits, seq.known):
        return False
    pool.adopt(seq, hits)
    assert pool.grow(seq, seq.known)
    pool.register(seq, seq.known)
    return True


def test_a_prefix_is_shared_and_blocks_return_tail_first() -> None:
    pool, first, second = PrefixPool(10, 16), reader(0, 55, 48), reader(1, 53, 48)
    assert take(pool, first)
    assert (first.table, pool.hashed) == ([1, 2, 3, 4], 3)
    assert take(pool, second)
    assert (second.table, second.cached) == ([1, 2, 3, 5], 48)
    pool.release(first)
    pool.release(second)
    assert pool.free_list() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_the_last_block_that_matches_can_be_given_up() -> None:
    """As without look-ahead hashing; of one block nothing is left."""
    pool = PrefixPool(10, 16, CachingRules(drops_last=True))
    first, second, third = reader(0, 55, 48), reader(1, 53, 48), reader(2, 20, 16)
    assert take(pool, first) and take(pool, second) and take(pool, third)
    assert (second.cached, third.cached) == (32, 0)


def test_unhashed_blocks_are_taken_first_and_deep_ones_before_shallow() -> None:
    pool, first, second = PrefixPool(10, 16), reader(0, 55, 48), reader(1, 53, 48)
    for seq in (first, second):
        take(pool, seq)
    for seq in (first, second):
        pool.release(seq)
    third, other = reader(2, 53, 48), reader(3, 160)
    assert take(pool, third)
    assert (third.table, third.cached) == ([1, 2, 3, 5], 48)
    pool.release(third)
    assert take(pool, other)
    assert (other.table, other.cached) == ([5, 4, 6, 7, 8, 9, 10, 3, 2, 1], 0)


def test_eviction() -> None:
    pool, first, second = PrefixPool(10, 16), reader(0, 5 * 16 + 7, 32), reader(1, 3 * 16)
    assert take(pool, first) and take(pool, second)
    assert pool.free_list() == [10]
    pool.release(first)
    assert pool.free_list() == [6, 10, 5, 4, 3, 2, 1]
    pool.release(second)
    assert pool.free_list() == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    third = reader(2, 35, 32)
    assert take(pool, third)
    assert (third.table, pool.free) == ([1, 2, 6], 7)


def test_decoding_fills_blocks_and_registers_them() -> None:
    pool, seq = PrefixPool(10, 16), reader(0, 55)
    take(pool, seq)
    for tokens, blocks, hashed in ((59, 4, 3), (78, 5, 4)):
        assert pool.grow(seq, tokens)
        pool.register(seq, tokens)
        assert (len(seq.table), pool.hashed) == (blocks, hashed)


def test_a_hit_is_not_evicted_for_its_own_request() -> None:
    pool, first, second = PrefixPool(2, 16), reader(0, 16, 16, text=1), reader(1, 16, 16, text=2)
    for seq in (first, second):
        take(pool, seq)
    for seq in (first, second):
        pool.release(seq)
    assert pool.free_list() == [1, 2]
    third = reader(2, 32, 16, text=1)
    assert take(pool, third)
    assert third.table == [1, 2]
    assert not pool.find(reader(3, 32, 16, text=2), 1)


def test_what_does_not_fit_changes_nothing() -> None:
    pool, sharer, other = PrefixPool(10, 16), reader(0, 48, 48), reader(1, 80)
    take(pool, sharer)
    take(pool, other)
    pool.release(sharer)
    assert pool.free == 5
    before = pool.free_list()
    asked = reader(2, 6 * 16, 48)
    assert len(pool.find(asked, 5)) == 3
    assert not take(pool, asked)  # 3 new ones, and the 3 that are found are among the 5 free
    assert pool.free_list() == before
    pool.check([other])


def test_a_content_in_two_blocks_outlives_the_first() -> None:
    pool = PrefixPool(3, 16)
    first, second = reader(0, 16, 16), reader(1, 16, 16)
    for seq in (first, second):  # a prompt of one whole block finds nothing: its last token must be computed
        take(pool, seq)
    assert (first.table, second.table, pool.hashed) == ([1], [2], 1)
    third = reader(2, 20, 16)
    assert pool.find(third, 1) == [1]  # the one registered first
    pool.release(first)
    take(pool, reader(3, 32))
    assert pool.find(third, 1) == [2]


def test_a_block_that_is_taken_again_loses_its_content() -> None:
    pool, first = PrefixPool(1, 16), reader(0, 16, 16)
    take(pool, first)
    pool.release(first)
    assert pool.find(reader(1, 20, 16), 1) == [1]
    take(pool, reader(2, 16))
    assert pool.find(reader(1, 20, 16), 1) == []


def test_a_prompt_of_whole_blocks_computes_its_last_one_again() -> None:
    pool = PrefixPool(10, 16)
    take(pool, reader(0, 64, 64))
    second = reader(1, 64, 64)
    take(pool, second)
    assert second.cached == 48


# --- blocks that are taken together, and content that is a request's own


def test_taken_blocks_are_settled_later() -> None:
    pool, first, second = PrefixPool(10, 16), reader(0, 16), reader(1, 16)
    for seq in (first, second):
        take(pool, seq)
    pool.take(3)
    assert (pool.free, first.table, second.table) == (5, [1], [2])
    with pytest.raises(AssertionError, match="not conserved"):
        pool.check([first, second])
    pool.settle(second, 17, 17)
    pool.settle(first, 40, 32)
    pool.check([first, second])
    assert (len(first.table), len(second.table)) == (3, 2)
    assert (first.registered, second.registered, pool.hashed) == (2, 1, 3)


def test_taking_pushes_out_what_could_be_found() -> None:
    pool, first = PrefixPool(3, 16), reader(0, 48, 48)
    take(pool, first)
    pool.release(first)
    pool.take(1)
    assert pool.find(reader(1, 64, 48), 3) == [1, 2]


@pytest.mark.parametrize("private", [False, True])
def test_a_request_finds_its_own_blocks_after_a_preemption(private: bool) -> None:
    pool, seq = PrefixPool(10, 16, CachingRules(private=private)), reader(0, 40, 16)
    take(pool, seq)
    pool.grow(seq, 70)
    pool.register(seq, 70)
    pool.release(seq)
    seq.known = 71
    assert take(pool, seq)
    assert (seq.cached, seq.table) == (64, [1, 2, 3, 4, 5])
    pool.release(seq)
    assert pool.find(seq, 4) == [1, 2, 3, 4]


def test_what_is_an_ended_requests_own_is_not_found_in_a_private_pool() -> None:
    """Its full blocks are appended to the free list, too, and allocated from there one by one."""
    pool, seq = PrefixPool(6, 16, CachingRules(private=True)), reader(0, 70, 16)
    take(pool, seq)
    pool.retire(seq)
    assert pool.free_list() == [5, 6, 4, 3, 2, 1]
    assert pool.find(seq, 4) == [1]
    assert pool.hashed == 1
    other = reader(1, 50)
    take(pool, other)
    assert other.table == [5, 6, 4, 3]
    assert pool.free_list() == [2, 1]
    pool.check([other])


def test_nothing_is_remembered_of_a_request_that_returned_and_ended() -> None:
    pool, seq, other = PrefixPool(6, 16, CachingRules(private=True)), reader(0, 70, 16), reader(1, 96)
    take(pool, seq)
    pool.release(seq)
    take(pool, seq)
    assert (seq.cached, pool.hashed) == (64, 4)
    pool.retire(seq)
    assert pool.free_list() == [5, 6, 4, 3, 2, 1]
    pool.grow(other, 96)
    assert (pool.hashed, pool._key) == (0, {})


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(1, 120), st.integers(0, 99)), max_size=80),
    st.integers(1, 20),
    st.booleans(),
)
def test_a_private_pool_gives_what_the_other_gives(
    actions: list[tuple[int, bool, int, int]], blocks: int, unhashed_first: bool
) -> None:
    """Requests come, are preempted, return, grow and end, in both pools: they get the same blocks."""
    pools = [PrefixPool(blocks, 16, CachingRules(unhashed_first, private)) for private in (False, True)]
    slots: dict[int, list[TrackedSequence]] = {}
    for number, (which, ends, tokens, shared) in enumerate(actions):
        twins = slots.setdefault(which, [reader(number, tokens, shared) for _ in pools])
        for pool, seq in zip(pools, twins, strict=True):
            if not seq.blocks:
                take(pool, seq)
            elif ends:
                pool.retire(seq)
            elif shared % 2:
                pool.release(seq)
            elif pool.grow(seq, seq.known + tokens):
                seq.known += tokens
                pool.register(seq, seq.known)
            pool.check(each[pools.index(pool)] for each in slots.values())
        if ends and not twins[0].blocks:
            del slots[which]
        assert pools[0].free_list() == pools[1].free_list()
        assert twins[0].table == twins[1].table


# --- contents


def test_own_blocks_are_nobody_elses() -> None:
    assert len({key for index in range(9) for key in own_keys(index, 0, 9)}) == 81


def test_texts_nest() -> None:
    first, second = text_keys([(0, 32), (1, 64)], 64, 16), text_keys([(0, 32), (2, 64)], 64, 16)
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])
    assert text_keys([(0, 32)], 20, 16) == first[:1]
    assert text_keys([(0, 32)], 32, 16, lookahead=1) == first[:1]  # the token after the second block is not shared


def hashed(ids: list[int], width: int, size: int, prompt: int = 1000, lookahead: int = 0) -> list[int]:
    return Contents([Content(hash_ids=ids, hash_block=width)], [prompt], [1]).shared_keys(0, size, lookahead)


@pytest.mark.parametrize(("width", "size", "blocks"), [(16, 16, 3), (32, 16, 6), (8, 16, 1), (24, 16, 4)])
def test_hash_ids_are_chained_whatever_their_block_size(width: int, size: int, blocks: int) -> None:
    keys = hashed([7, 8, 9], width, size)
    assert len(set(keys)) == len(keys) == blocks
    assert hashed([7, 8, 9, 10], width, size)[:blocks] == keys
    assert not set(hashed([6, 8, 9], width, size)) & set(keys)  # what comes before a block is part of its content
    assert len(hashed([7, 8, 9], width, size, prompt=size)) == 1


def test_hash_ids_with_the_next_token() -> None:
    keys = hashed([7, 8, 9], 16, 16, lookahead=1)
    assert len(keys) == 2
    assert hashed([7, 8, 1], 16, 16, lookahead=1)[0] == keys[0] != hashed([7, 1, 9], 16, 16, lookahead=1)[0]


def test_a_conversation_goes_on_from_its_parents_prompt_and_output() -> None:
    contents = [Content(texts=((0, 16),)), Content(parent=0), Content(parent=1), Content(parent=0)]
    keys = Contents(contents, [40, 80, 200, 30], [20, 50, 1, 1])
    assert keys.shared_keys(1, 16) == [*text_keys([(0, 16)], 40, 16), *own_keys(0, 1, 3)]
    grandchild = keys.shared_keys(2, 16)
    assert grandchild == [*keys.shared_keys(1, 16), *own_keys(1, 3, 8)]
    assert keys.shared_keys(3, 16) == text_keys([(0, 16)], 40, 16)  # cut to its own prompt


# --- conservation


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(1, 120), st.integers(0, 99)), max_size=80),
    st.integers(1, 20),
)
def test_blocks_are_conserved(actions: list[tuple[int, int, int, int]], blocks: int) -> None:
    pool = PrefixPool(blocks, 16)
    holders: dict[int, TrackedSequence] = {}
    for which, text, tokens, shared in actions:
        if which in holders:
            pool.release(holders.pop(which))
        else:
            seq = reader(which, tokens, shared, text)
            if take(pool, seq):
                holders[which] = seq
        pool.check(holders.values())
        assert sorted({*pool.free_list(), *(block for seq in holders.values() for block in seq.table)}) == [
            *range(1, blocks + 1)
        ]


def test_the_check_shows_both_sides_of_the_sum() -> None:
    pool, seq = PrefixPool(10, 16), reader(0, 40)
    take(pool, seq)
    seq.blocks += 1
    with pytest.raises(AssertionError, match="blocks are not conserved"):
        pool.check([seq])


# --- public reports


def test_a_partial_block_is_taken_before_a_full_one() -> None:
    """vllm#42656: a partial block can never be found, so it must not outlive one that can."""
    pool, seq = PrefixPool(2, 16), reader(0, 24, 16)
    take(pool, seq)
    pool.release(seq)
    assert pool.free_list() == [2, 1]
    take(pool, reader(1, 8))
    assert pool.find(reader(2, 24, 16), 1) == [1]


def test_the_deepest_block_of_a_chain_goes_first() -> None:
    """llm-d-inference-sim#704: of a chain of three, one block is needed: the next such prompt finds two."""
    for index in range(200):
        pool, chain = PrefixPool(3, 16), reader(2 * index, 48, 48)
        take(pool, chain)
        pool.release(chain)
        take(pool, reader(2 * index + 1, 16))
        assert len(pool.find(reader(2 * index, 64, 48), 3)) == 2


def test_older_engines_put_every_freed_block_to_the_back() -> None:
    """The older rule: partial blocks are freed after the unused ones, and full ones after them."""
    pool, first, second = PrefixPool(10, 16, CachingRules(unhashed_first=False)), reader(0, 55, 48), reader(1, 53, 48)
    assert take(pool, first) and take(pool, second)
    pool.release(first)
    assert pool.free_list() == [6, 7, 8, 9, 10, 4]
    pool.release(second)
    assert pool.free_list() == [6, 7, 8, 9, 10, 4, 5, 3, 2, 1]
    other = reader(2, 8 * 16)
    assert take(pool, other)
    assert other.table == [6, 7, 8, 9, 10, 4, 5, 3]
    assert pool.hashed == 2 + 8  # block 3 had content and lost it, 4 and 5 had none
    pool.check([other])
