"""Further cases of the complete policy: a preemption by hand, conversations by their parents, a slot by priority."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.engine.replay import Replay, ReplayInputs, ReplayRequest, ReplaySettings
from simulator.memory import Content, Contents
from simulator.recordings.reader import LinearTime
from simulator.results.record import RunRecord
from simulator.scenario.schedulers import VllmScheduler
from simulator.study.run import Run
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
def test_one_preemption_by_hand(caching: bool) -> None:
    """10 blocks, two requests (64, 64): the younger one is preempted in its 17th decode."""
    finished = simulate([(0, 64, 64)] * 2, blocks=10, enable_prefix_caching=caching)
    engine = finished.summary["engine"]
    assert (engine["preemptions"], engine["recomputed_tokens"]) == (1, 80)
    assert engine["steps"] == (111 if not caching else engine["steps"])
    assert simulate([(0, 64, 64)] * 2, blocks=100).summary["engine"]["steps"] == 64


def test_a_conversation_finds_all_of_its_past() -> None:
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
    settings = ReplaySettings(VllmScheduler(version="none", enable_prefix_caching=True), None, 100_000, 16, 10**6)
    hits = {}
    for line in Replay(settings, ReplayInputs(requests, known, LinearTime(10**6, 0, 0))).lines():
        hits |= line["hits"]
    for r in range(rounds):
        # The answer's last token is not computed, so that its block is found no more.
        found = {hits[str(r * clients + client)] for client in range(clients)}
        assert found == {max(0, prompts[r] - turn - 16 * bool(r))}
        if r:
            assert (found.pop() + 16) / (prompts[r] - turn) == 1


def test_with_no_slot_free_it_is_admitted_first() -> None:
    requests: Requests = [(0.01 * i, 100, 50) for i in range(20)]
    plain, ranked = (
        ttft_ms(simulate(requests, priority=[9] * 19 + [0], scheduling_policy=policy, max_num_seqs=4).record)[-1]
        for policy in ("fcfs", "priority")
    )
    assert ranked < plain / 3


def prefill_steps(finished: Run, index: int) -> int:
    """Return the number of steps from the first one with request `index` to that of its first token."""
    requests, steps = finished.record.requests, finished.record.steps
    begun, done = requests.scheduled_ns[index], requests.first_token_ns[index]
    return int(np.count_nonzero((steps.sched_ns >= begun) & (steps.end_ns <= done)))
