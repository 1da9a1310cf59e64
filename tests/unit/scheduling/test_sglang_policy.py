"""SGLang's rules, one by one, on a view made of lists."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.memory import text_keys
from simulator.scenario.schedulers import SglangScheduler
from simulator.scheduling import STEADY, SequenceState
from tests.unit.scheduling.bench import Bench


def bench(blocks: int, block_size: int = 1, **settings: Any) -> Bench:
    defaults = {"max_num_seqs": 1024, "async_scheduling": True, "enable_prefix_caching": False}
    return Bench(SglangScheduler(**(defaults | settings)), blocks, block_size)


def ratio(stage: Bench) -> float:
    value: float = stage.policy.new_token_ratio(stage)
    return value


def test_prefill_comes_first_and_decodes_stand_still() -> None:
    stage = bench(10_000)
    stage.request(100)
    assert stage.step() == {0: 100}
    assert stage.step() == {0: 1}
    assert stage.plan is STEADY
    stage.request(200)
    assert stage.step() == {1: 200}
    assert stage.plan.paused
    assert stage.step() == {0: 1, 1: 1}


def test_mixed_chunk_runs_decodes_beside_the_prompt_within_its_budget() -> None:
    stage = bench(10_000, enable_mixed_chunk=True, max_num_batched_tokens=100)
    stage.request(50)
    stage.step()
    stage.request(300)
    assert [stage.step() for _ in range(3)] == [{0: 1, 1: 99}] * 3
    assert stage.step() == {0: 1, 1: 3}
    assert not stage.plan.paused


def test_a_cut_prompt_goes_on_before_others_begin() -> None:
    stage = bench(10_000, max_num_batched_tokens=100)
    stage.request(150)
    stage.request(30)
    stage.request(80)
    assert stage.step() == {0: 100}
    assert stage.step() == {0: 50, 1: 30, 2: 20}
    assert stage.step() == {2: 60}


def test_several_prompts_stay_below_max_prefill_tokens_and_one_alone_may_exceed_it() -> None:
    stage = bench(10_000, max_prefill_tokens=100)
    for prompt in (60, 40, 39, 500):
        stage.request(prompt)
    assert [stage.step() for _ in range(3)] == [{0: 60}, {1: 40, 2: 39}, {3: 500}]


def test_max_running_requests() -> None:
    stage = bench(10_000, max_num_seqs=2)
    for _ in range(3):
        stage.request(10, max_tokens=3)
    assert stage.step() == {0: 10, 1: 10}
    assert [stage.step() for _ in range(2)] == [{0: 1, 1: 1}] * 2
    assert stage.step() == {2: 10}


@pytest.mark.parametrize(("blocks", "admitted"), [(2 * 100 + 80 + 69, 1), (2 * 100 + 80 + 70, 2)])
def test_admission_reserves_a_share_of_what_the_running_may_still_write(blocks: int, admitted: int) -> None:
    """One runs with 99 tokens allowed, x 0.7 = 69.3; the new one needs its prompt of 100 and all of its 80."""
    stage = bench(blocks)
    stage.request(100, max_tokens=100)
    stage.step()
    stage.request(100, max_tokens=80)
    stage.step()
    assert len(stage.list) == admitted


@pytest.mark.parametrize(("blocks", "step"), [(150 + 200 + 30 + 100, {0: 50}), (150 + 200 + 30 + 101, {0: 50, 1: 30})])
def test_the_last_chunk_of_a_prompt_counts_with_all_of_its_output(blocks: int, step: dict[int, int]) -> None:
    """The step that ends a prompt of 150 with 200 tokens allowed has room for 30 and 100 more, and one to spare."""
    stage = bench(blocks, max_num_batched_tokens=100)
    stage.request(150, max_tokens=200)
    stage.request(30, max_tokens=100)
    assert stage.step() == {0: 100}
    assert stage.step() == step


def test_allowed_outputs_beyond_4096_are_not_reckoned_with() -> None:
    stage = bench(20_000)
    stage.request(100, max_tokens=10_000)
    stage.step()
    stage.request(9_000, max_tokens=4_900)  # 100 held + 0.7 x 4096 + 9000 + 4096 fit; with 9999 and 4900 they would not
    assert stage.step() == {1: 8192}


def test_a_full_batch_takes_nobody_in_until_one_leaves() -> None:
    stage = bench(300)
    stage.request(100, max_tokens=4)
    stage.request(100, max_tokens=60)
    stage.step()
    stage.request(100, max_tokens=50)  # 200 held + 0.7 x (3 + 59) + 150 > 300: the batch is full
    stage.request(1, max_tokens=1)  # would fit, and is behind it
    assert [stage.step() for _ in range(3)] == [{0: 1, 1: 1}] * 3
    assert stage.step() == {1: 1}  # one has left: the flag falls in this step
    assert stage.step() == {2: 100, 3: 1}


def test_ratio_falls_over_600_decode_steps_to_its_floor_and_is_reset_when_idle() -> None:
    stage = bench(10_000)
    assert ratio(stage) == 0.7
    stage.request(10, max_tokens=700)
    stage.step()  # a prefill step: no decay
    assert ratio(stage) == 0.7
    for _ in range(300):
        stage.step()
    assert ratio(stage) == pytest.approx((0.7 + 0.7 * 0.14) / 2)
    for _ in range(399):
        stage.step()
    assert ratio(stage) == pytest.approx(0.7 * 0.14)
    assert not stage.list
    stage.step()  # nothing to do
    assert ratio(stage) == 0.7


@pytest.mark.parametrize(("conservativeness", "start"), [(0.3, 0.21), (1.0, 0.7), (2.0, 1.0)])
def test_conservativeness_scales_the_start(conservativeness: float, start: float) -> None:
    assert ratio(bench(100, schedule_conservativeness=conservativeness)) == pytest.approx(start)


def test_retraction_takes_the_fewest_outputs_then_the_longest_prompt_and_keeps_one() -> None:
    stage = bench(160, schedule_conservativeness=0.01)
    old = stage.request(40, max_tokens=70)
    stage.step()
    for _ in range(10):
        stage.step()
    short, long = stage.request(20, max_tokens=30), stage.request(25, max_tokens=30)
    stage.until(lambda plan: plan.preempted)
    assert stage.plan.preempted == [long]  # as many outputs as the other, and a longer prompt
    assert stage.list == [old, short]
    assert list(stage.waiting) == [long]
    outputs = [seq.target - 1 - seq.prompt_tokens for seq in (old, short)]  # before this step's own tokens
    assert ratio(stage) == pytest.approx((sum(outputs) + 20 * 2) / (70 + 30))


def test_the_retracted_go_to_the_back_and_compute_prompt_and_output_again() -> None:
    stage = bench(160, schedule_conservativeness=0.01)
    stage.request(40, max_tokens=70)
    for _ in range(11):
        stage.step()
    stage.request(20, max_tokens=30)
    long = stage.request(25, max_tokens=30)
    stage.step()
    behind = stage.request(60, max_tokens=80)  # does not fit for now
    stage.until(lambda plan: plan.preempted)
    assert list(stage.waiting) == [behind, long]
    known = long.target
    assert known > 25
    stage.until(lambda plan: long in plan.admitted)
    assert dict(stage.plan.chunks)[long] == known


def test_one_alone_is_never_retracted() -> None:
    stage = bench(100)
    stage.request(40, max_tokens=61)
    for _ in range(61):
        stage.step()
        assert not stage.plan.preempted
    assert not stage.list


def test_one_alone_is_retracted_where_what_is_outside_the_batch_holds_the_memory() -> None:
    stage = bench(30)
    alone = stage.request(5, max_tokens=20)
    stage.step()
    incoming = SequenceState(9, 24, 1)
    stage.reserve(incoming, 24)
    assert stage.step() == {0: 1}
    assert stage.pool.free == 0
    before = ratio(stage)
    assert stage.step() == {}
    assert stage.plan.preempted == [alone]
    assert stage.pool.free == 6
    assert stage.step() == {}
    assert ratio(stage) == before
    stage.release(incoming)
    assert stage.step() == {0: 7}


def cached(stage: Bench, text: int, tokens: int) -> None:
    """Serve a request with this text, to cache it."""
    stage.request(tokens, max_tokens=1, shared=keys(text, tokens))
    stage.step()
    assert not stage.list


def keys(text: int, tokens: int) -> list[int]:
    return list(text_keys([(text, tokens)], tokens, 16))


def test_lpm_takes_the_longest_cached_prefix_first_and_ties_in_order() -> None:
    stage = bench(10_000, 16, enable_prefix_caching=True, max_num_batched_tokens=8192)
    cached(stage, 7, 160)
    cached(stage, 8, 320)
    plain, ten, twenty, last = (
        stage.request(200),
        stage.request(200, shared=keys(7, 160)),
        stage.request(400, shared=keys(8, 320)),
        stage.request(200),
    )
    stage.step()
    assert stage.plan.admitted == [twenty, ten, plain, last]
    assert [tokens for _, tokens in stage.plan.chunks] == [80, 40, 200, 200]


@pytest.mark.parametrize(("waiting", "first"), [(128, 127), (129, 0)])
def test_with_more_than_128_waiting_lpm_is_first_come_first_served(waiting: int, first: int) -> None:
    stage = bench(100_000, 16, enable_prefix_caching=True)
    cached(stage, 7, 160)
    for _ in range(waiting - 1):
        stage.request(64)
    stage.request(200, shared=keys(7, 160))
    stage.step()
    assert stage.plan.admitted[0].index == first + 1


@pytest.mark.parametrize("settings", [{"enable_prefix_caching": False}, {"schedule_policy": "fcfs"}])
def test_fcfs_by_setting_or_without_radix_cache(settings: dict[str, Any]) -> None:
    stage = bench(100_000, 16, **({"enable_prefix_caching": True} | settings))
    cached(stage, 7, 160)
    first, second = stage.request(64), stage.request(200, shared=keys(7, 160))
    stage.step()
    assert stage.plan.admitted == [first, second]


@pytest.mark.parametrize(("shared", "order"), [(16, [0, 1, 2, 3]), (32, [0, 3, 1, 2])])
def test_of_those_that_share_an_uncached_prefix_only_the_first_keeps_its_place(shared: int, order: list[int]) -> None:
    stage = bench(100_000, 16, enable_prefix_caching=True)
    for _ in range(3):
        stage.request(100, shared=keys(5, shared))
    stage.request(100)
    stage.step()
    assert [seq.index for seq in stage.plan.admitted] == order
    assert all(tokens == 100 for _, tokens in stage.plan.chunks)  # nothing of this step's is found in it


def test_a_small_cached_prefix_does_not_save_from_giving_way_and_a_larger_one_does() -> None:
    for cached_tokens, order in ((32, [1, 3, 2]), (48, [1, 2, 3])):
        stage = bench(100_000, 16, enable_prefix_caching=True)
        cached(stage, 5, cached_tokens)
        text = list(text_keys([(5, cached_tokens), (6, 160)], 160, 16))
        stage.request(200, shared=text)
        stage.request(200, shared=text)
        stage.request(100)
        stage.step()
        assert [seq.index for seq in stage.plan.admitted] == order
