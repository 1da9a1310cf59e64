"""DistServe: batches of whole prompts up to a number of tokens, or decodes; first come, first served."""

from __future__ import annotations

from typing import Any

from simulator.scenario.schedulers import DistServeScheduler
from tests.unit.scheduling.stage import Stage


def stage_of(blocks: int, totals: bool, **settings: Any) -> Stage:
    return Stage(DistServeScheduler(**settings), blocks, totals)


def test_a_prefill_batch_is_bounded_by_tokens_and_in_order(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_batched_tokens=512)
    first, second, third, _ = stage.add(300, 200, 100, 50)
    assert stage.step() == {0: 300, 1: 200}
    stage.end(first, second)
    assert stage.step() == {2: 100, 3: 50}
    assert third.decoding


def test_a_prefill_batch_is_bounded_by_requests(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_seqs=2)
    first, second, _ = stage.add(10, 10, 10)
    assert stage.step() == {0: 10, 1: 10}
    stage.end(first, second)
    assert stage.step() == {2: 10}


def test_prompts_wait_for_the_blocks_of_those_that_are_still_to_be_fetched(totals: bool) -> None:
    stage = stage_of(10, totals)
    first, _ = stage.add(96, 80)
    assert stage.step() == {0: 96}
    stage.end(first, kept=True)
    assert stage.step() == {}
    stage.release(first)
    assert stage.step() == {1: 80}


def test_a_decode_instance_gives_each_a_token_and_the_last_gives_way(totals: bool) -> None:
    stage = stage_of(10, totals)
    first, second = stage.add(64, 80)
    stage.step()
    assert stage.step() == {0: 1}
    assert stage.plan.preempted == [second]
    stage.end(first)
    assert stage.step() == {1: 81}
    assert stage.plan.paused
