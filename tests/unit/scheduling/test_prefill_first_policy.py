"""vLLM V0: prompts in steps of their own, decodes pause; the last admitted is recomputed."""

from __future__ import annotations

from typing import Any

from simulator.scenario.schedulers import PrefillFirstScheduler
from simulator.scheduling import STEADY
from tests.unit.scheduling.stage import Stage


def stage_of(blocks: int, totals: bool, **settings: Any) -> Stage:
    return Stage(PrefillFirstScheduler(**settings), blocks, totals)


def test_prompts_have_steps_of_their_own(totals: bool) -> None:
    stage = stage_of(1000, totals)
    stage.add(100, 200)
    assert stage.step() == {0: 100, 1: 200}
    assert stage.step() == {0: 1, 1: 1}
    assert stage.plan is STEADY
    stage.add(50)
    assert stage.step() == {2: 50}
    assert stage.plan.paused
    assert stage.step() == {0: 1, 1: 1, 2: 1}


def test_prompts_come_before_decodes_for_as_long_as_there_are_any(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_batched_tokens=1000)
    stage.add(900, 900, 900)
    assert [stage.step() for _ in range(4)] == [{0: 900}, {1: 900}, {2: 900}, {0: 1, 1: 1, 2: 1}]


def test_the_head_waits_for_the_budget_and_nobody_passes_it(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_batched_tokens=1000)
    stage.add(600, 500, 10)
    assert stage.step() == {0: 600}
    assert stage.step() == {1: 500, 2: 10}


def test_no_more_sequences_than_places(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_seqs=2)
    first, *_ = stage.add(10, 10, 10)
    assert stage.step() == {0: 10, 1: 10}
    assert stage.step() == {0: 1, 1: 1}
    stage.end(first)
    assert stage.step() == {2: 10}


def test_the_watermark_stays_free_unless_nothing_runs(totals: bool) -> None:
    stage = stage_of(100, totals, watermark=0.1)
    stage.add(16 * 95, 16)
    assert stage.step() == {0: 1520}  # alone, it may take more than 90 of 100 blocks
    assert stage.step() == {0: 1}  # 5 blocks are free, and 10 are to stay free
    assert not stage.plan.paused


def test_the_last_admitted_gives_way_and_is_recomputed_with_its_output(totals: bool) -> None:
    stage = stage_of(10, totals, watermark=0.0)
    first, second = stage.add(64, 80)
    assert stage.step() == {0: 64, 1: 80}
    assert stage.step() == {0: 1}
    assert stage.plan.preempted == [second]
    assert not stage.plan.paused
    assert list(stage.waiting) == [second]
    stage.end(first)
    assert stage.step() == {1: 81}
    assert stage.step() == {1: 1}


def test_several_give_way_from_the_end(totals: bool) -> None:
    """Four need a block each, and one gives back two."""
    stage = stage_of(8, totals, watermark=0.0)
    sequences = stage.add(32, 32, 32, 32)
    assert stage.step() == {0: 32, 1: 32, 2: 32, 3: 32}
    assert stage.step() == {0: 1, 1: 1}
    assert stage.plan.preempted == [sequences[3], sequences[2]]
    assert list(stage.waiting) == sequences[2:]


def test_a_sequence_alone_that_lacks_a_block_gives_way_itself(totals: bool) -> None:
    stage = stage_of(2, totals)
    stage.add(32)
    stage.step()
    assert stage.step() == {}
    assert list(stage.waiting) == stage.plan.preempted
    assert stage.pool.free == 2
