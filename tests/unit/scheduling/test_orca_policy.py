"""Orca: whole prompts beside decodes, and memory for all that a request could ever need."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.scenario.schedulers import OrcaScheduler
from simulator.scheduling import STEADY
from tests.unit.scheduling.stage import Stage


def stage_of(blocks: int, totals: bool, block_size: int = 16, **settings: Any) -> Stage:
    return Stage(OrcaScheduler(**settings), blocks, totals, block_size)


def test_prompts_are_computed_whole_beside_decodes(totals: bool) -> None:
    stage = stage_of(1000, totals)
    stage.add(100)
    stage.step()
    stage.add(300)
    assert stage.step() == {0: 1, 1: 300}
    assert stage.step() == {0: 1, 1: 1}
    assert stage.plan is STEADY


@pytest.mark.parametrize(("max_tokens", "admitted"), [(256, 26), (1000, 10), (12_000, 1)])
def test_as_many_as_could_reach_their_last_token(totals: bool, max_tokens: int, admitted: int) -> None:
    """TGI#1435 and #1221: KV / (prompt + max_new_tokens) requests are admitted, also if their answers are short."""
    stage = stage_of(12_288, totals, block_size=1)
    stage.add(*[200] * 60, max_tokens=max_tokens)
    assert len(stage.step()) == admitted == 12_288 // (200 + max_tokens)
    assert len(stage.step()) == admitted


def test_nothing_is_preempted_and_the_head_waits_for_its_whole_reservation(totals: bool) -> None:
    stage = stage_of(20, totals)
    first, second, *_ = stage.add(16, 16, 16, max_tokens=144)
    assert stage.step() == {0: 16, 1: 16}  # 10 blocks each
    for _ in range(143):
        assert stage.step() == {0: 1, 1: 1}
    assert (first.blocks, second.blocks, stage.pool.free) == (10, 10, 0)
    stage.end(first)
    assert stage.step() == {1: 1, 2: 16}


def test_a_misfit_stops_those_behind_it(totals: bool) -> None:
    stage = stage_of(20, totals)
    stage.add(16, max_tokens=144)
    stage.add(16, max_tokens=400)
    stage.add(16, max_tokens=16)
    assert stage.step() == {0: 16}


def test_places_and_prompt_tokens_of_a_step(totals: bool) -> None:
    stage = stage_of(1000, totals, max_num_seqs=3, max_num_batched_tokens=250)
    stage.add(100, 100, 100, 100)
    assert stage.step() == {0: 100, 1: 100}
    assert stage.step() == {0: 1, 1: 1, 2: 100}
    assert stage.step() == {0: 1, 1: 1, 2: 1}
