"""The vLLM policy on a view made of lists: no clock, no engine.

Expected numbers are those of vLLM's own scheduler tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.memory import text_keys
from simulator.scenario.schedulers import VllmScheduler
from simulator.scheduling import STEADY, ContentSequence, PolicySetup
from simulator.scheduling.vllm import VllmPolicy
from tests.unit.scheduling.stage import Stage


class VllmStage(Stage):
    """A stage by the settings of vLLM."""

    def __init__(self, blocks: int, totals: bool, block_size: int = 16, **settings: Any) -> None:
        super().__init__(VllmScheduler(version="none", **settings), blocks, totals, block_size)


def test_everything_fits_one_step(totals: bool) -> None:
    stage = VllmStage(10_000, totals)
    stage.add(*[10] * 10)
    assert list(stage.step()) == list(range(10))
    assert stage.plan.admitted == stage.list


def test_long_prefill_threshold(totals: bool) -> None:
    stage = VllmStage(10_000, totals, max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    stage.add(800, 800, 800)
    assert [list(stage.step().values()) for _ in range(3)] == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


@pytest.mark.parametrize(("chunked", "admitted"), [(True, [0, 1]), (False, [0])])
def test_chunking_admits_a_part_of_the_next_prompt(totals: bool, chunked: bool, admitted: list[int]) -> None:
    stage = VllmStage(10_000, totals, max_num_batched_tokens=1024, max_num_seqs=3, enable_chunked_prefill=chunked)
    stage.add(800, 800, 10, 10)
    assert list(stage.step()) == admitted  # strict order: the short ones behind are not pulled forward


def test_a_decode_preempts_the_last_admitted(totals: bool) -> None:
    stage = VllmStage(10, totals)
    first, second = stage.add(80, 80)
    stage.step()
    assert stage.step() == {0: 1}
    assert stage.plan.preempted == [second]
    assert list(stage.waiting) == [second]
    assert (second.blocks, second.target, first.blocks) == (0, 81, 6)


def test_nothing_is_admitted_in_a_step_that_preempts(totals: bool) -> None:
    stage = VllmStage(10, totals)
    stage.add(80, 80)
    stage.step()
    stage.add(1)
    assert stage.step() == {0: 1}
    assert stage.running == 1
    # The preempted request is the head, does not fit, and keeps the small one after it waiting.
    assert stage.step() == {0: 1}
    assert [seq.index for seq in stage.waiting] == [1, 2]


def test_several_victims_go_back_in_order_of_admission(totals: bool) -> None:
    stage = VllmStage(3, totals)
    stage.add(16, 16, 16)
    stage.step()
    assert stage.step() == {0: 1}
    # The third gives its block to the first; then the second finds none, and the last one running is itself.
    assert [seq.index for seq in stage.plan.preempted] == [2, 1]
    assert [seq.index for seq in stage.waiting] == [1, 2]
    stage = VllmStage(4, totals, max_num_seqs=4)
    stage.add(16, 16, 16, 16)
    stage.step()
    assert stage.step() == {0: 1, 1: 1}
    assert [seq.index for seq in stage.plan.preempted] == [3, 2]
    assert [seq.index for seq in stage.waiting] == [2, 3]


def test_a_running_prefill_is_served_before_new_ones_and_after_decodes(totals: bool) -> None:
    stage = VllmStage(10_000, totals, max_num_batched_tokens=100)
    stage.add(30, 150, 20)
    assert stage.step() == {0: 30, 1: 70}
    assert stage.step() == {0: 1, 1: 80, 2: 19}
    assert stage.step() == {0: 1, 1: 1, 2: 1}


def test_a_prefill_that_finds_no_blocks_gives_way_itself(totals: bool) -> None:
    stage = VllmStage(6, totals, max_num_batched_tokens=48, scheduler_reserve_full_isl=False)
    stage.add(16, 96)
    assert stage.step() == {0: 16, 1: 32}
    assert stage.step() == {0: 1}  # the decode takes a block; 2 are left, and the next chunk of 47 tokens needs 3
    assert [seq.index for seq in stage.plan.preempted] == [1]


@pytest.mark.parametrize(("reserve", "admitted"), [(True, 1), (False, 2)])
def test_full_prompt_reservation_holds_back_what_could_not_finish_its_prefill(
    totals: bool, reserve: bool, admitted: int
) -> None:
    stage = VllmStage(10, totals, max_num_batched_tokens=100, scheduler_reserve_full_isl=reserve)
    stage.add(60, 120)
    assert len(stage.step()) == admitted


@pytest.mark.parametrize(("first", "admitted"), [(6, 2), (7, 1)])
def test_the_watermark_is_of_all_blocks_the_reserved_one_too(totals: bool, first: int, admitted: int) -> None:
    """A fifth of ten blocks: of nine usable ones, two stay free after an admission."""
    stage = VllmStage(9, totals, watermark=0.2)
    stage.add(first * 16, 16)
    assert len(stage.step()) == admitted


def test_the_watermark_binds_only_while_something_runs(totals: bool) -> None:
    stage = VllmStage(9, totals, watermark=0.2)  # 2 of 10 blocks, vLLM's reserved one counted
    stage.add(8 * 16, 16)
    assert stage.step() == {0: 128}  # 1 block is left, and 1 + 2 would be needed
    stage = VllmStage(11, totals, watermark=0.2)
    stage.add(8 * 16, 16)
    assert stage.step() == {0: 128, 1: 16}


def test_what_is_found_costs_no_budget_even_if_this_step_computes_it(totals: bool) -> None:
    stage = VllmStage(100, totals, max_num_batched_tokens=70, enable_prefix_caching=True)
    keys = text_keys([(0, 48)], 55, 16)
    first, second, third = (ContentSequence(index, 55, 100, keys) for index in range(3))
    stage.waiting.extend([first, second, third])
    assert stage.step() == {0: 55, 1: 7, 2: 7}
    assert stage.plan.chunks == [(first, 55), (second, 7), (third, 7)]
    assert [seq.cached for seq in stage.list] == [0, 48, 48]
    assert stage.pool.blocks - stage.pool.free == 3 + 3  # the shared ones, and one that is not full for each


def test_blocks_of_a_prompt_are_found_as_far_as_chunks_have_come(totals: bool) -> None:
    stage = VllmStage(100, totals, max_num_batched_tokens=40, enable_prefix_caching=True)
    keys = text_keys([(0, 160)], 160, 16)
    stage.waiting.append(ContentSequence(0, 160, 100, keys))
    assert [stage.step() for _ in range(3)] == [{0: 40}] * 3
    stage.waiting.append(ContentSequence(1, 130, 100, keys[:8]))
    assert stage.step() == {0: 40}  # the budget is used up
    assert stage.step() == {0: 1, 1: 2}  # all blocks of the first one are computed by now


def test_max_num_seqs_counts_running_sequences(totals: bool) -> None:
    stage = VllmStage(1000, totals, max_num_seqs=2)
    stage.add(10, 10, 10)
    assert stage.step() == {0: 10, 1: 10}
    assert stage.step() == {0: 1, 1: 1}


def test_the_budget_holds_decodes_back_in_order(totals: bool) -> None:
    stage = VllmStage(1000, totals, max_num_batched_tokens=4)
    stage.add(1, 1, 1, 1)
    stage.step()
    lowered = VllmScheduler(version="none", max_num_batched_tokens=3)  # as if the limit had been lowered
    stage.policy = VllmPolicy(PolicySetup(lowered, 1000))
    assert stage.step() == {0: 1, 1: 1, 2: 1}
    assert [seq.index for seq in stage.plan.held] == [3]


def test_the_policy_allocates_exactly_what_its_plan_computes(totals: bool) -> None:
    stage = VllmStage(50, totals, max_num_batched_tokens=40)
    stage.add(33, 20, 64)
    for _ in range(40):
        stage.step()
        assert all(seq.blocks == stage.pool.blocks_for(seq.computed) for seq in stage.list)


def test_a_plan_without_changes_is_the_steady_one() -> None:
    stage = VllmStage(100, True)
    stage.add(10)
    stage.step()
    stage.step()
    assert stage.plan is STEADY  # the very object: the engine takes it for a promise
