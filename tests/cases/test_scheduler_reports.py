"""Public reports on priorities, preemption and prefix caching, by their numbers in the project's catalogue (P...), and
hand-derived traces (D...). Signs and shapes, and digits where the case's law and requests are known."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simulator.engine.replay import Replay, ReplayRequest, ReplaySettings
from simulator.memory import Content, Contents
from simulator.results.record import RunRecord
from simulator.scenario.schema import VllmScheduler
from simulator.study.recordings import LinearTime
from simulator.study.run import Run, execute, prepare
from tests.helpers import PLACEHOLDER, request_table, run, scenario

LAW = {"base": "8ms", "per_token": "50us"}
Requests = list[tuple[float, int, int]]


def simulate(
    requests: Requests,
    *,
    law: dict[str, Any] = LAW,
    blocks: int = 10**6,
    priority: list[int] | None = None,
    **scheduler: Any,
) -> Run:
    arrivals, prompts, outputs = zip(*requests, strict=True)
    table = request_table([round(arrival * 1e9) for arrival in arrivals], prompts, outputs, priority=priority)
    settings = {"max_num_batched_tokens": 8192, "max_num_seqs": 256} | scheduler
    return run(scenario(PLACEHOLDER, law, scheduler=settings, memory={"kv_blocks": blocks}), table)


def ttft_ms(record: RunRecord) -> np.ndarray:
    return (record.requests.first_token_ns - record.requests.arrival_ns) / 1e6


@pytest.mark.parametrize("caching", [False, True])
def test_d7_one_preemption_by_hand(caching: bool) -> None:
    """10 blocks, two requests (64, 64): the younger one gives way in its 17th decode."""
    finished = simulate([(0, 64, 64)] * 2, blocks=10, enable_prefix_caching=caching)
    engine = finished.summary["engine"]
    assert (engine["preemptions"], engine["recomputed_tokens"]) == (1, 80)
    assert engine["steps"] == (111 if not caching else engine["steps"])
    assert simulate([(0, 64, 64)] * 2, blocks=100).summary["engine"]["steps"] == 64


def test_p03_a_limit_on_partial_prefills_trades_the_mean_for_the_tail() -> None:
    """vllm#41399: many small prompts, some large ones: one large prompt at a time keeps all others waiting."""
    draw = np.random.default_rng(3)
    kinds = draw.choice([100, 2000, 16000], 400, p=[0.8, 0.15, 0.05])
    arrivals = np.cumsum(draw.exponential(1 / 14, 400))
    requests: Requests = [(float(at), int(prompt), 20) for at, prompt in zip(arrivals, kinds, strict=True)]
    settings = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 512}
    means = {
        limit: ttft_ms(simulate(requests, max_num_partial_prefills=limit, **settings).record).mean()
        for limit in (1, 4, 8)
    }
    assert means[1] > 1.5 * means[4]
    assert means[4] >= means[8]


@pytest.mark.parametrize("reserve", [True, False])
def test_p13_two_requests_of_which_the_memory_holds_one(reserve: bool) -> None:
    """vllm#21793: each needs 60% of the memory. Reservation makes them take turns."""
    finished = simulate([(0, 12_000, 100)] * 2, blocks=20_000 // 16, scheduler_reserve_full_isl=reserve)
    preemptions = finished.summary["engine"]["preemptions"]
    assert preemptions == 0 if reserve else preemptions >= 1


def test_p17_what_preempted_requests_find_is_no_hit() -> None:
    """vllm#25780: random prompts share nothing, whatever the scheduler recomputes."""
    requests: Requests = [(0, 256, 256)] * 80
    finished = simulate(requests, blocks=80 * 512 // 16 // 4, enable_prefix_caching=True)
    assert finished.summary["engine"]["preemptions"] > 10
    cache = finished.summary["prefix_cache"]
    assert cache["hit_rate"] == 0
    assert cache["recovered_tokens"] > 0


def test_p18_the_victim_with_the_fewest_computed_tokens_wastes_less() -> None:
    """vllm#54644: the youngest victim may have a long prefix to lose."""
    draw = np.random.default_rng(12345)
    requests: Requests = [(0.0, int(draw.integers(32, 257)), int(draw.integers(128, 513))) for _ in range(300)]
    law = {"base": "8ms", "per_token": "10us"}
    last, least = (
        simulate(requests, law=law, blocks=800, preemption_victim=victim).summary["engine"]["recomputed_tokens"]
        for victim in ("last", "least_computed")
    )
    assert 0 < least < last


def test_p22_d9_a_conversation_finds_all_of_its_past() -> None:
    """sglang#33984: equal turns, append only, memory for all: round r finds r / (r + 1) of its prompt."""
    turn, rounds, clients = 1600, 9, 5
    prompts = [turn * (2 * r + 1) for r in range(rounds)]  # each answer is as long as the question
    requests, contents = [], []
    for r in range(rounds):
        for client in range(clients):
            number = r * clients + client
            requests.append(ReplayRequest(number, number * 10**12, prompts[r], turn, turn, 0))
            contents.append(Content(parent=number - clients if r else None))
    known = Contents(contents, [request.prompt_tokens for request in requests], [turn] * len(requests))
    settings = ReplaySettings(VllmScheduler(enable_prefix_caching=True), None, 100_000, 16, 10**6)
    hits = {}
    for line in Replay(settings, requests, known, LinearTime(10**6, 0, 0), None).lines():
        hits |= line["hits"]
    for r in range(rounds):
        # The answer's last token is not computed, so that its block is found no more.
        found = {hits[str(r * clients + client)] for client in range(clients)}
        assert found == {max(0, prompts[r] - turn - 16 * bool(r))}
        if r:
            assert (found.pop() + 16) / (prompts[r] - turn) == 1


@pytest.mark.parametrize(("blocks", "rate"), [(10 * 7 - 1, 0.0), (11 * 7 + 1, 2 / 3)])
def test_d8_cyclic_reuse_finds_nothing_or_everything(blocks: int, rate: float) -> None:
    """11 prompts of 7 blocks and a token, round and round: least recently used is the worst order for a loop."""
    table = dataclasses.replace(
        request_table([i * 10**9 for i in range(33)], [113] * 33, [1] * 33), prompt_id=np.arange(33) % 11
    )
    ready = prepare(scenario(PLACEHOLDER, LAW, scheduler={"enable_prefix_caching": True}, memory={"kv_blocks": blocks}))
    cache = execute(dataclasses.replace(ready, table=table)).summary["prefix_cache"]
    assert cache["hit_rate"] == pytest.approx(rate * 112 / 113, abs=1e-6)


def test_p44_a_high_priority_is_no_faster_once_it_runs() -> None:
    """vllm#24365: priority orders admission, not the share of decodes."""
    requests: Requests = [(0, 100, 200)] * 30 + [(0.5, 100, 200)]
    plain, ranked = (
        simulate(requests, priority=[9] * 30 + [0], scheduling_policy=policy).record.requests
        for policy in ("fcfs", "priority")
    )
    assert plain.first_token_ns[-1] == ranked.first_token_ns[-1]
    assert plain.finish_ns[-1] == ranked.finish_ns[-1]


def test_p44_with_no_slot_free_it_is_admitted_first() -> None:
    requests: Requests = [(0.01 * i, 100, 50) for i in range(20)]
    plain, ranked = (
        ttft_ms(simulate(requests, priority=[9] * 19 + [0], scheduling_policy=policy, max_num_seqs=4).record)[-1]
        for policy in ("fcfs", "priority")
    )
    assert ranked < plain / 3


def test_p45_preempted_requests_first() -> None:
    """vllm#41951: what is preempted goes behind newcomers of higher priority, unless the option says otherwise."""
    draw = np.random.default_rng(5)
    requests: Requests = [(0.05 * i, 150, 150) for i in range(60)]
    priority = draw.integers(0, 3, 60).tolist()
    faithful, first = (
        simulate(requests, priority=priority, scheduling_policy="priority", preempted_first=option, blocks=80)
        for option in (False, True)
    )
    assert first.summary["engine"]["preemptions"] > 0
    waits = [
        np.max(finished.record.requests.finish_ns - finished.record.requests.first_token_ns)
        for finished in (faithful, first)
    ]
    assert waits[1] < waits[0]


def prefill_steps(finished: Run, index: int) -> int:
    """Steps from the first with request `index` to the one that brings its first token."""
    requests, steps = finished.record.requests, finished.record.steps
    begun, done = requests.scheduled_ns[index], requests.first_token_ns[index]
    return int(np.count_nonzero((steps.sched_ns >= begun) & (steps.end_ns <= done)))


@pytest.mark.parametrize("threshold", [0, 256])
def test_p02_a_small_budget_and_a_very_long_prompt(threshold: int) -> None:
    """vllm#10235: the long prompt takes what two decodes leave of every step; nobody else gets in before its end."""
    requests: Requests = [(0, 10, 1200)] * 2 + [(1, 130_000, 1), (1.5, 100, 5)]
    finished = simulate(requests, max_num_batched_tokens=512, long_prefill_token_threshold=threshold)
    first = finished.record.requests.first_token_ns
    if threshold:
        assert first[3] < first[2] / 5
    else:
        assert prefill_steps(finished, 2) == -(-130_000 // 510)
        assert first[3] >= first[2]


def test_p04_a_threshold_costs_the_long_prompt_only_beside_others() -> None:
    """vllm#57413: alone, the cap is waived; beside a decode, a quarter of the budget is four times the steps."""
    settings = {"max_num_batched_tokens": 16_384}
    alone: Requests = [(0, 131_072, 4)]
    beside: Requests = [(0, 10, 400), (1, 131_072, 4)]
    counts = [
        prefill_steps(simulate(requests, long_prefill_token_threshold=threshold, **settings), len(requests) - 1)
        for requests in (alone, beside)
        for threshold in (0, 4096)
    ]
    assert counts == [8, 8, 9, 32]


def test_p11_a_larger_budget_saves_steps() -> None:
    """vllm#7604: offline, the makespan falls with the budget, by the fixed cost of the steps saved."""
    runs = [simulate([(0, 40_000, 256)] * 50, max_num_batched_tokens=budget) for budget in (4096, 8192, 16_384)]
    durations = [finished.summary["duration_s"] for finished in runs]
    steps = [finished.summary["engine"]["steps"] for finished in runs]
    assert durations[0] > durations[1] > durations[2]
    assert durations[0] - durations[1] == pytest.approx((steps[0] - steps[1]) * 0.008)


def test_p56_more_sequences_at_once_trade_tpot_for_ttft_until_there_are_enough() -> None:
    """vllm#17598: 16 requests/s of 128 tokens in and out."""
    draw = np.random.default_rng(9)
    arrivals = np.cumsum(draw.exponential(1 / 16, 400))
    requests: Requests = [(float(at), 128, 128) for at in arrivals]
    law = {"base": "6ms", "per_token": "80us"}
    blocks = [simulate(requests, law=law, max_num_seqs=limit).summary["latency"] for limit in (8, 16, 32, 64)]
    ttft, tpot = ([block[name]["mean"] for block in blocks] for name in ("ttft_ms", "tpot_ms"))
    assert ttft[0] > 5 * ttft[1] > 5 * ttft[2]
    assert tpot[0] < tpot[1] < tpot[2]
    assert (ttft[3], tpot[3]) == (pytest.approx(ttft[2], rel=0.01), pytest.approx(tpot[2], rel=0.01))
