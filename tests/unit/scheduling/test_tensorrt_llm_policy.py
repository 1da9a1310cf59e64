"""TensorRT-LLM's rules, one by one, on a view made of lists."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.scenario.schedulers import TensorRtLlmScheduler
from simulator.scheduling import SequenceState
from tests.unit.scheduling.bench import Bench
from tests.unit.scheduling.stage import Stage

NO_EVICT, MAX, STATIC = "GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"


def bench(blocks: int, policy: Any = NO_EVICT, **settings: Any) -> Bench:
    return Bench(TensorRtLlmScheduler(capacity_scheduler_policy=policy, **settings), blocks)


def test_blocks_to_completion_of_everybody_are_set_aside() -> None:
    stage = bench(30)  # 16 + 144 tokens are 10 blocks
    for _ in range(4):
        stage.request(16, max_tokens=144)
    assert stage.step() == {0: 16, 1: 16, 2: 16}
    assert stage.pool.free == 27
    for _ in range(142):
        assert stage.step() == {0: 1, 1: 1, 2: 1}
    assert stage.step() == {0: 1, 1: 1, 2: 1}
    assert stage.step() == {3: 16}


@pytest.mark.parametrize("policy", [NO_EVICT, MAX])
def test_the_first_misfit_stops_those_behind_it(policy: str) -> None:
    stage = bench(20, policy)
    stage.request(160, max_tokens=16)
    stage.request(176, max_tokens=100)
    stage.request(16, max_tokens=16)  # would fit
    assert stage.step() == {0: 160}
    assert list(stage.step()) == [0]


def test_max_utilization_counts_one_step_and_pauses_the_last_started() -> None:
    stage = bench(10, MAX)
    first, second, third = (stage.request(32, max_tokens=100) for _ in range(3))
    assert stage.step() == {0: 32, 1: 32, 2: 32}
    for _ in range(15):
        stage.step()
    assert stage.pool.free == 1  # three blocks each
    stage.step()
    assert stage.plan.preempted == []
    late = stage.request(16, max_tokens=100)
    stage.until(lambda plan: plan.preempted)
    assert stage.plan.preempted == [third]
    assert stage.list == [first, second]
    assert not stage.plan.admitted  # nothing comes in behind a pause
    assert list(stage.waiting) == [third, late]


def test_a_paused_request_returns_before_later_ones_and_computes_all_it_knows() -> None:
    stage = bench(13, MAX)
    for _ in range(3):
        stage.request(32, max_tokens=60)
    stage.until(lambda plan: plan.preempted)
    paused = stage.plan.preempted[0]
    stage.request(16)
    stage.until(lambda plan: plan.admitted)
    assert stage.plan.admitted[0] is paused
    assert stage.plan.chunks[0] == (paused, paused.target - 1)


def test_no_evict_never_pauses_where_max_utilization_does() -> None:
    pauses = {}
    for policy in (NO_EVICT, MAX):
        stage = bench(10, policy)
        for _ in range(6):
            stage.request(32, max_tokens=60)
        pauses[policy] = 0
        while stage.list or stage.waiting:
            stage.step()
            pauses[policy] += len(stage.plan.preempted)
    assert pauses[NO_EVICT] == 0 < pauses[MAX]


def test_static_batch_takes_in_when_nothing_runs() -> None:
    stage = bench(100, STATIC)
    stage.request(16, max_tokens=2)
    stage.request(16, max_tokens=4)
    assert stage.step() == {0: 16, 1: 16}
    stage.request(16, max_tokens=2)
    assert [stage.step() for _ in range(3)] == [{0: 1, 1: 1}, {1: 1}, {1: 1}]
    assert stage.step() == {2: 16}


@pytest.mark.parametrize(
    ("chunked", "steps"), [(False, [{0: 60}, {0: 1, 1: 60}]), (True, [{0: 60, 1: 40}, {0: 1, 1: 20}])]
)
def test_the_micro_batch_pass_gives_out_max_num_tokens(chunked: bool, steps: list[dict[int, int]]) -> None:
    stage = bench(1000, max_num_batched_tokens=100, enable_chunked_context=chunked)
    stage.request(60)
    stage.request(60)
    assert [stage.step() for _ in range(2)] == steps


def test_max_batch_size() -> None:
    stage = bench(1000, max_num_seqs=2)
    for _ in range(3):
        stage.request(16, max_tokens=2)
    assert stage.step() == {0: 16, 1: 16}
    assert stage.step() == {0: 1, 1: 1}
    assert stage.step() == {2: 16}


def test_a_prompt_of_one_token_more_than_a_step_holds_beside_the_decodes_waits_for_one_to_end() -> None:
    """With room for one prompt and the decodes of all other clients, which is how a published benchmark was run, a
    tokeniser's own first token makes a prompt wait until one more request has ended."""
    for extra, waits in ((0, 0), (1, 1)):
        stage = bench(1000, max_num_batched_tokens=100 + 4 - 1)
        for client in range(4):
            stage.request(100 + extra, max_tokens=10 + 10 * client)
        while len(stage.list) < 3:
            stage.step()
        stage.step()
        assert len(stage.waiting) == waits


def handed_over(stage: Stage, index: int, prompt: int, max_tokens: int) -> SequenceState:
    """Return a request whose prompt is computed on another replica, with its blocks."""
    seq = SequenceState(index, prompt, max_tokens)
    seq.expect(delivered=1)
    stage.reserve(seq, seq.computed)
    return seq


def test_what_did_not_fit_is_looked_at_again_when_others_run_though_not_fewer(totals: bool) -> None:
    stage = Stage(TensorRtLlmScheduler(), 30, totals)
    first, second = stage.add(16, 16, max_tokens=144)  # 10 blocks each, to completion
    stage.add(16, max_tokens=160)  # 11 blocks
    assert stage.step() == {0: 16, 1: 16}
    assert stage.step() == {0: 1, 1: 1}
    stage.end(first)
    stage.join(handed_over(stage, 9, 16, max_tokens=16))  # 2 blocks
    assert stage.step() == {1: 1, 9: 1, 2: 16}
    assert second in stage.list


@pytest.mark.parametrize("policy", [NO_EVICT, STATIC])
def test_blocks_that_wait_to_be_fetched_are_not_there_for_others(policy: Any, totals: bool) -> None:
    stage = Stage(TensorRtLlmScheduler(capacity_scheduler_policy=policy), 10, totals)
    first, _ = stage.add(111, 111, max_tokens=1)  # 7 blocks each
    assert stage.step() == {0: 111}
    first.target = first.computed  # its one token is delivered
    stage.end(first, kept=True)
    assert stage.step() == {}
    stage.release(first)
    assert stage.step() == {1: 111}


@pytest.mark.parametrize(("blocks", "step"), [(11 + 10, {0: 16}), (11 + 9, {})])
def test_blocks_to_completion_of_what_is_on_its_way_in_are_set_aside(
    blocks: int, step: dict[int, int], totals: bool
) -> None:
    stage = Stage(TensorRtLlmScheduler(), blocks, totals)
    handed_over(stage, 9, 16, max_tokens=144)  # 10 blocks, of which it holds one
    stage.add(16, max_tokens=160)  # 11
    assert stage.step() == step
