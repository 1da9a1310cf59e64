"""Sarathi-Serve, Algorithm 3: decodes, then partly computed prompts, then new ones; and its two parts alone."""

from __future__ import annotations

from typing import Any

from simulator.scenario.schedulers import SarathiScheduler
from simulator.scheduling import STEADY
from tests.unit.scheduling.stage import Stage


def stage_of(blocks: int, totals: bool, **settings: Any) -> Stage:
    return Stage(SarathiScheduler(**settings), blocks, totals)


def test_decodes_then_prompts_under_way_then_new_ones(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_batched_tokens=100)
    stage.add(60, 150, 200)
    assert stage.step() == {0: 60, 1: 40}
    assert stage.step() == {0: 1, 1: 99}
    assert stage.step() == {0: 1, 1: 11, 2: 88}
    assert stage.step() == {0: 1, 1: 1, 2: 98}
    assert stage.step() == {0: 1, 1: 1, 2: 14}
    assert stage.step() == {0: 1, 1: 1, 2: 1}
    assert stage.plan is STEADY


def test_every_decode_goes_on_even_beyond_the_budget(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_batched_tokens=4)
    stage.add(1, 1, 1, 1)
    assert len(stage.step()) == 4
    stage.add(1)
    assert stage.step() == {0: 1, 1: 1, 2: 1, 3: 1}  # and nothing is left for the new one
    assert len(stage.waiting) == 1


def test_a_prompt_gets_all_its_blocks_at_admission(totals: bool) -> None:
    stage = stage_of(20, totals, max_num_batched_tokens=32, watermark=0.1)
    first, _ = stage.add(16 * 10, 16 * 9)
    assert stage.step() == {0: 32}
    assert first.blocks == 10
    for _ in range(4):
        assert stage.step() == {0: 32}
    assert stage.step() == {0: 1}  # the second would leave 1 block free, and 2 are to stay
    assert len(stage.waiting) == 1


def test_who_gives_way_was_admitted_last_and_nobody_comes_in_its_place(totals: bool) -> None:
    stage = stage_of(10, totals, watermark=0.0)
    first, second = stage.add(64, 80)
    stage.add(32)
    assert stage.step() == {0: 64, 1: 80}
    assert stage.step() == {0: 1}
    assert stage.plan.preempted == [second]
    assert stage.waiting[0] is second
    assert stage.step() == {0: 1}  # the head needs 6 blocks of 5, and stops the third
    stage.end(first)
    assert stage.step() == {1: 81, 2: 32}


def test_a_prompt_under_way_can_give_way(totals: bool) -> None:
    stage = stage_of(10, totals, max_num_batched_tokens=20, watermark=0.0)
    _, second = stage.add(16, 140)
    assert stage.step() == {0: 16, 1: 4}
    assert stage.step() == {0: 1}
    assert stage.plan.preempted == [second]


def test_without_chunks_a_prompt_is_computed_in_one_step_beside_the_decodes(totals: bool) -> None:
    stage = stage_of(1000, totals, chunked=False, max_num_batched_tokens=1000)
    stage.add(10)
    stage.step()
    stage.add(1000, 10)
    assert stage.step() == {0: 1, 1: 1000}
    assert stage.step() == {0: 1, 1: 1, 2: 10}


def test_alternating_gives_chunks_and_decodes_a_step_each_in_turn(totals: bool) -> None:
    stage = stage_of(1000, totals, batching="alternating", max_num_batched_tokens=100)
    stage.add(10)
    assert stage.step() == {0: 10}
    assert stage.step() == {0: 1}
    stage.add(250)
    steps = [stage.step() for _ in range(6)]
    assert steps == [{1: 100}, {0: 1}, {1: 100}, {0: 1}, {1: 50}, {0: 1, 1: 1}]


def test_alternating_chunks_follow_each_other_while_nothing_decodes(totals: bool) -> None:
    stage = stage_of(1000, totals, batching="alternating", max_num_batched_tokens=100)
    stage.add(250, 30)
    assert [stage.step() for _ in range(4)] == [{0: 100}, {0: 100}, {0: 50, 1: 30}, {0: 1, 1: 1}]
