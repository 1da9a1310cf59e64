"""Static batches: formed once, of what waits when nothing runs."""

from __future__ import annotations

from typing import Any

from simulator.scenario.schedulers import StaticScheduler
from simulator.scheduling import STEADY
from tests.unit.scheduling.stage import Stage


def stage_of(blocks: int, totals: bool, **settings: Any) -> Stage:
    return Stage(StaticScheduler(**settings), blocks, totals)


def test_nobody_joins_before_all_have_ended(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_seqs=2)
    first, second, third = stage.add(10, 20, 30)
    assert stage.step() == {0: 10, 1: 20}
    assert stage.step() == {0: 1, 1: 1}
    stage.end(first)
    assert stage.step() == {1: 1}
    assert stage.plan is STEADY
    stage.end(second)
    assert stage.step() == {2: 30}
    stage.end(third)
    assert stage.step() == {}


def test_a_batch_is_bounded_by_prompt_tokens(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_batched_tokens=100)
    stage.add(40, 40, 40)
    assert stage.step() == {0: 40, 1: 40}


def test_a_batch_is_bounded_by_memory_for_prompts_and_max_tokens(totals: bool) -> None:
    stage = stage_of(20, totals)
    stage.add(16, 16, 16, max_tokens=144)
    assert stage.step() == {0: 16, 1: 16}
    for _ in range(143):
        assert stage.step() == {0: 1, 1: 1}


def test_a_padded_batch_is_a_rectangle(totals: bool) -> None:
    stage = stage_of(1000, totals, padded=True)
    first, _ = stage.add(10, 40)
    assert stage.step() == {0: 10, 1: 40}
    assert stage.plan.padded == (2, 40)
    stage.step()
    assert stage.plan.padded == (2, 41)
    stage.end(first)
    assert stage.step() == {1: 1}
    assert stage.plan.padded == (2, 42)


def test_padding_counts_as_prompt_tokens(totals: bool) -> None:
    stage = stage_of(1000, totals, padded=True, max_num_batched_tokens=100)
    stage.add(10, 20, 34, 5)
    assert stage.step() == {0: 10, 1: 20}  # a third row would make it 3 x 34
