"""Public reports on preemption, priorities and prefix caching as runs under an affine step law.

P, D and S numbers are those of the project's catalogue of public cases. Signs and shapes always; digits where the
catalogue's small reference simulator prints them for the same law and requests, or where the report's own follow from
its workload.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simulator.engine.simulation import simulate as engine_run
from simulator.results.columns import Status
from simulator.study.prepare import prepare
from simulator.study.run import Run
from tests.helpers import PLACEHOLDER, request_table, run, scenario

LAW = {"base": "8ms", "per_token": "50us"}
UNIT_STEP = {"base": "1s"}
Requests = list[tuple[float, int, int]]


def simulate(
    requests: Requests,
    *,
    law: dict[str, Any] = LAW,
    blocks: int = 10**8,
    priority: list[int] | None = None,
    texts: list[tuple[int, int]] | None = None,
    replicas: int = 1,
    router: str = "round_robin",
    **scheduler: Any,
) -> Run:
    """Simulate requests; `texts` has a text (-1 for none) and its number of leading prompt tokens by request."""
    arrivals, prompts, outputs = zip(*requests, strict=True)
    table = request_table(
        [round(arrival * 1e9) for arrival in arrivals],
        prompts,
        outputs,
        priority=priority,
        prefix_id=None if texts is None else [text for text, _ in texts],
        prefix_tokens=None if texts is None else [tokens for _, tokens in texts],
    )
    settings = {"max_num_batched_tokens": 8192, "max_num_seqs": 256} | scheduler
    memory, keys = {"kv_blocks": blocks}, {"router": {"policy": router}}
    return run(scenario(PLACEHOLDER, law, scheduler=settings, memory=memory, replicas=replicas, **keys), table)


def ttft_ms(finished: Run, at: int) -> float:
    requests = finished.record.requests
    return float(requests.first_token_ns[at] - requests.arrival_ns[at]) / 1e6


def cached(finished: Run) -> list[int]:
    return finished.record.requests.cached_tokens.tolist()


# --- preemption


def test_a_limit_on_partial_prefills_has_a_best_value_for_the_mean() -> None:
    """vllm#41399: small, medium and large prompts near saturation; mean TTFT 722 / 750 / 539 ms at no limit / 1 / 4.

    One prompt at a time keeps all others waiting. Without a limit so many long prompts are partly computed that they
    preempt each other: here memory is scarce and admission checks the first chunk only. The limit that is best for the
    mean is worse for the tail than one at a time.
    """
    draw = np.random.default_rng(3)
    arrivals = np.cumsum(draw.exponential(1 / 6, 1000))
    prompts = np.repeat([100, 1500, 12_000], [800, 150, 50])[draw.permutation(1000)]
    requests: Requests = [(float(at), int(prompt), 32) for at, prompt in zip(arrivals, prompts, strict=True)]
    law = {"base": "5ms", "per_prefill_token": "120us", "per_decode_token": "100us"}
    settings = {
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 256,
        "scheduler_reserve_full_isl": False,
    }
    found = {}
    for limit in (None, 1, 4):
        finished = simulate(requests, law=law, blocks=3200, max_num_partial_prefills=limit, **settings)
        found[limit] = finished.summary["latency"]["ttft_ms"]
    assert found[4]["mean"] < 0.9 * found[None]["mean"] < 0.6 * found[1]["mean"]
    assert found[4]["p99"] > 1.2 * found[1]["p99"]


def test_what_preempted_requests_find_again_is_no_hit() -> None:
    """vllm#25780: 1,000 random prompts of 1,024 tokens share nothing; the reported hit rate was 32%."""
    law = {"base": "8ms", "per_token": "10us"}
    settings = {"max_num_seqs": 1000, "enable_prefix_caching": True}
    finished = simulate([(0.0, 1024, 1024)] * 1000, law=law, blocks=260 * 2048 // 16, **settings)
    cache, engine = finished.summary["prefix_cache"], finished.summary["engine"]
    assert engine["preemptions"] > 100
    assert (cache["hit_rate"], cache["queried_tokens"]) == (0, 1000 * 1024)
    assert 0 < cache["recovered_tokens"] < engine["recomputed_tokens"]


def test_the_recompute_tax_grows_as_memory_shrinks_and_another_victim_pays_less() -> None:
    """vllm#54644: the share of computed tokens that were lost. The report's workload, whose lengths are not
    known, lost 0 / 32 / 58 / 79% at the last four sizes."""
    draw = np.random.default_rng(12345)
    requests: Requests = [(0.0, int(draw.integers(32, 257)), int(draw.integers(128, 513))) for _ in range(300)]
    asked = sum(prompt + output for _, prompt, output in requests)
    taxes = []
    for blocks in (9000, 2800, 1600, 800, 400):
        last, least = (
            simulate(
                requests, law={"base": "8ms", "per_token": "10us"}, blocks=blocks, preemption_victim=victim
            ).summary["engine"]["recomputed_tokens"]
            for victim in ("last", "least_computed")
        )
        assert least < last or last == 0
        taxes.append(last / (last + asked))
    assert taxes == pytest.approx([0, 0.243, 0.315, 0.358, 0.375], abs=5e-4)


class PreemptingSteps:
    """Watches a replica: how many sequences each step preempted that preempted any."""

    def __init__(self) -> None:
        self.victims: list[int] = []

    def attach(self, replica: Any) -> None: ...
    def asked(self, now_ns: int) -> None: ...
    def arrived(self, seq: Any, ready_ns: int) -> None: ...
    def completed(self, step: Any) -> None: ...

    def formed(self, step: Any, sched_ns: int, start_ns: int) -> None:
        if step.plan.preempted:
            self.victims.append(len(step.plan.preempted))


def test_most_preempted_requests_are_preempted_once() -> None:
    """inference-sim#963: 7.4% of 19,801 requests preempted, 95% of them once, none more than 4 times; all complete.

    98.5% of the steps that preempt take one victim.
    """
    workload = {
        "arrivals": {"process": "poisson", "rate": 7.3},
        "requests": 3000,
        "prompt_tokens": {"distribution": "lognormal", "mean": 500, "cv": 1, "max": 4000},
        "output_tokens": {"distribution": "geometric", "mean": 250, "max": 2000},
    }
    law = {"base": "10ms", "per_prefill_token": "20us", "per_decode_token": "100us"}
    settings = {"max_num_batched_tokens": 8192}
    ready, steps = prepare(scenario(workload, law, scheduler=settings, memory={"kv_blocks": 1600})), PreemptingSteps()
    record = engine_run(ready.scenario, ready.table, ready.resolved.services, observers=lambda replica: steps)
    assert (record.requests.status == Status.COMPLETED).all()
    counts = np.bincount(record.requests.preemptions, minlength=5)
    assert sum(steps.victims) == record.requests.preemptions.sum() > 50
    assert steps.victims.count(1) / len(steps.victims) > 0.95
    assert len(counts) == 5  # 4 is the most
    assert 0.02 < 1 - counts[0] / 3000 < 0.12
    assert counts[1] / counts[1:].sum() > 0.7
    assert all(more < 0.4 * fewer for fewer, more in pairwise(counts))


# --- priorities


def test_a_high_priority_does_not_speed_up_what_runs() -> None:
    """vllm#24365: priority orders admission, not the share of decodes; where a slot is free it changes nothing."""
    law = {"base": "8ms", "per_prefill_token": "50us", "per_decode_token": "400us"}

    def urgent(others: int, policy: str) -> tuple[float, float]:
        """Return TTFT and TPOT, in ms, of an urgent request that arrives while `others` decode."""
        requests: Requests = [(0.0, 1000, 400)] * others + [(3.0, 1000, 100)]
        finished = simulate(requests, law=law, priority=[10] * others + [0], scheduling_policy=policy)
        columns = finished.record.requests
        return ttft_ms(finished, -1), (columns.finish_ns[-1] - columns.first_token_ns[-1]) / 99 / 1e6

    alone, among, unranked = urgent(0, "priority"), urgent(30, "priority"), urgent(30, "fcfs")
    assert among == unranked
    assert among[1] == pytest.approx(8 + 31 * 0.4)  # that of the whole batch
    assert alone == pytest.approx((58, 8.4))


@pytest.mark.parametrize("preempted_first", [False, True])
def test_of_two_equals_one_is_preempted_once(preempted_first: bool) -> None:
    """vllm#41951: with any order of readmission, the younger of two equals is preempted once, and readmitted once."""
    settings = {"scheduling_policy": "priority", "preempted_first": preempted_first}
    finished = simulate([(0, 64, 64), (0.5, 64, 64)], law=UNIT_STEP, blocks=10, priority=[0, 0], **settings)
    assert finished.record.requests.preemptions.tolist() == [0, 1]


@pytest.mark.parametrize(("preempted_first", "ends"), [(False, [0, 2, 1]), (True, [0, 1, 2])])
def test_a_preempted_request_loses_its_place_to_a_newcomer(preempted_first: bool, ends: list[int]) -> None:
    """vllm#41951: the second request is preempted at once; a more urgent third one arrives before it fits again."""
    settings = {"scheduling_policy": "priority", "preempted_first": preempted_first}
    requests: Requests = [(0, 64, 64), (0, 64, 64), (20, 64, 64)]
    found = simulate(requests, law=UNIT_STEP, blocks=8, priority=[0, 5, 1], **settings).record.requests
    assert found.preemptions.tolist() == [0, 1, 0]
    assert np.argsort(found.finish_ns).tolist() == ends


# --- prefix caching


def rounds(pool_blocks: int, prompts: list[int], clients: int) -> Run:
    """Return growing conversations: in each round, every client sends its next turn."""
    requests: Requests = []
    texts = []
    for number, prompt in enumerate(prompts):
        for client in range(clients):
            requests.append((1000.0 * number + 10 * client, prompt, 1))
            texts.append((client, prompt))
    settings = {"enable_prefix_caching": True, "max_num_batched_tokens": 10**6}
    return simulate(requests, blocks=pool_blocks, texts=texts, **settings)


def hit_rates(finished: Run, clients: int) -> np.ndarray:
    """Return tokens found / looked up, by round."""
    requests = finished.record.requests
    found, asked = (column.reshape(-1, clients).sum(1) for column in (requests.cached_tokens, requests.queried_tokens))
    return found / asked


def test_hit_rates_of_append_only_conversations() -> None:
    """sglang#33984: 20 clients, 9 rounds. The reported rates are those of turns of 8,192 tokens with 2 more a round.

    A smaller cache keeps the early rounds as they are. (Here it then collapses: one tier, least recently used.)
    """
    reported = [0.499939, 0.666558, 0.749863, 0.799844, 0.833164, 0.856964, 0.874813, 0.888696]
    prompts = [8192 * (r + 1) + 2 * r for r in range(9)]
    ample = hit_rates(rounds(10**6, prompts, 20), 20)
    assert ample[0] == 0
    assert ample[1:] == pytest.approx(reported, abs=1e-6)
    small = hit_rates(rounds(20 * 8192 * 5 // 16, prompts, 20), 20)
    assert small[:5].tolist() == ample[:5].tolist()
    assert (small[5:] < ample[5:] / 2).all()


def test_a_conversation_of_equal_turns_finds_r_of_r_plus_1() -> None:
    rates = hit_rates(rounds(10**6, [160 * (r + 1) for r in range(9)], 3), 3)
    assert rates.tolist() == [r / (r + 1) for r in range(9)]


@pytest.mark.parametrize(
    ("router", "last_turn", "any_turn"), [("random", 1 / 8, 1 - (7 / 8) ** 7), ("round_robin", 1, 1)]
)
def test_a_turn_finds_its_conversation_where_it_was(router: str, last_turn: float, any_turn: float) -> None:
    """1,000 conversations of 8 turns over 8 replicas. Round robin gets them in the same order in every turn, and so
    sends each to the same replica."""
    requests: Requests = [(1000.0 * turn + 0.5 * i, 16 * (turn + 1) + 1, 1) for turn in range(8) for i in range(1000)]
    texts = [(i, 16 * (turn + 1)) for turn in range(8) for i in range(1000)]
    finished = simulate(requests, texts=texts, replicas=8, router=router, enable_prefix_caching=True)
    found = finished.record.requests.cached_tokens.reshape(8, 1000)[7]
    assert np.mean(found == 16 * 7) == pytest.approx(last_turn, abs=0.03)
    assert np.mean(found > 0) == pytest.approx(any_turn, abs=0.045)


def test_least_recently_used_of_three_items_in_two_places() -> None:
    """King's formula for independent draws: the sum of p_i p_j (p_i + p_j) / (1 - p_i)."""
    p = [0.5, 0.3, 0.2]
    items = np.random.default_rng(0).choice(3, 20_000, p=p).tolist()
    requests: Requests = [(0.1 * i, 17, 1) for i in range(len(items))]
    texts = [(item, 16) for item in items]
    found = cached(simulate(requests, blocks=3, texts=texts, enable_prefix_caching=True))
    recent: list[int] = []
    for item, tokens in zip(items, found, strict=True):
        assert (tokens > 0) == (item in recent)
        recent = [*[other for other in recent if other != item], item][-2:]
    exact = sum(p[i] * p[j] * (p[i] + p[j]) / (1 - p[i]) for i in range(3) for j in range(3) if i != j)
    assert exact == pytest.approx(0.719286, abs=1e-6)
    assert np.mean(np.array(found) > 0) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(("sessions", "found"), [(3, 0), (4, 128)])
def test_cyclic_reuse_finds_nothing_or_everything(sessions: int, found: int) -> None:
    """Four sessions in turn, room for `sessions` of them: the one that comes next is the one that has just gone."""
    requests: Requests = [(float(i), 129, 1) for i in range(40)]
    texts = [(i % 4, 128) for i in range(40)]
    finished = simulate(requests, blocks=8 * sessions + 1, texts=texts, enable_prefix_caching=True)
    assert cached(finished) == [0] * 4 + [found] * 36


def test_a_partial_block_is_taken_before_a_full_one() -> None:
    """vllm#42656: blocks of both requests are freed in one step, full ones first; a partial block cannot be found."""
    requests: Requests = [(0.0, 32, 1), (0.0, 8, 1), (1.0, 8, 1), (2.0, 33, 1)]
    texts = [(0, 32), (-1, 0), (-1, 0), (0, 32)]
    finished = simulate(requests, blocks=3, texts=texts, enable_prefix_caching=True)
    assert finished.record.requests.finish_ns[:2].tolist() == [10_000_000] * 2
    assert cached(finished) == [0, 0, 0, 32]


def test_a_prompt_loses_its_last_block_first() -> None:
    """llm-d-inference-sim#704: three blocks cached, one of them needed: the next identical prompt finds two, always."""
    requests: Requests = [(0.0, 49, 1)]
    texts = [(0, 48)]
    for i in range(200):
        requests += [(2.0 * i + 1, 20, 1), (2.0 * i + 2, 49, 1)]
        texts += [(-1, 0), (0, 48)]
    finished = simulate(requests, blocks=4, texts=texts, enable_prefix_caching=True)
    assert cached(finished)[2::2] == [32] * 200
