"""The recorded parts of each request's time against a plain account of the steps, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator
from cost_models.shape import BatchShape
from simulator.engine.batches.explicit_step import ExplicitStep
from simulator.engine.batches.interface import Step
from simulator.engine.core import EngineCore
from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.results.attribution import attribute
from simulator.results.record import RunRecord
from simulator.results.segments import token_times
from simulator.scheduling import SequenceState
from tests.engine.test_handover import apart, serve
from tests.engine.test_lazy_equals_explicit import WindowLaw, random_table
from tests.helpers import PLACEHOLDER, request_table, run, scenario

MS = 10**6


@dataclass(frozen=True)
class Formed:
    """A step as it was formed."""

    shape: BatchShape
    sched_ns: int
    end_ns: int
    preempted: list[int]
    admitted: list[int]


class Diary:
    """An observer that writes down every step."""

    def __init__(self) -> None:
        self.steps: list[Formed] = []

    def attach(self, replica: EngineCore) -> None: ...
    def asked(self, now_ns: int) -> None: ...
    def arrived(self, seq: SequenceState, ready_ns: int) -> None: ...
    def completed(self, step: Step) -> None: ...

    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None:
        assert isinstance(step, ExplicitStep)
        names = [[seq.index for seq in named] for named in (step.plan.preempted, step.plan.admitted)]
        self.steps.append(Formed(step.shape, sched_ns, step.end_ns, *names))


def stalls_of(steps: list[Formed], law: WindowLaw) -> dict[int, int]:
    """Return the delay of each step by its chunks, including that of the CPU, by the end of the step."""
    stalls: dict[int, int] = {}
    free = prepared = 0
    for step in steps:
        start = max(step.sched_ns, prepared)
        if step.shape.decodes and step.shape.chunks:
            alone = law.step_cost(step.shape._replace(chunks=(), new_requests=0, sampled=step.shape.decodes))
            stalls[step.end_ns] = step.end_ns - max(start + alone.host_ns, free) - alone.device_ns
        if step.shape.tokens:
            prepared = start + law.step_cost(step.shape).host_ns
        free = step.end_ns
    return stalls


def account(record: RunRecord, diary: Diary, law: WindowLaw, request: int) -> dict[str, int]:
    """Return the parts of one completed request, by going through its tokens."""
    columns, stalls = record.requests, stalls_of(diary.steps, law)
    tokens = token_times(record, request).tolist()
    ends = [step.end_ns for step in diary.steps]
    away, left = [], 0
    for step in diary.steps:
        if request in step.preempted:
            left = step.sched_ns
        if request in step.admitted and step.sched_ns > columns.scheduled_ns[request]:
            away.append((left, step.sched_ns))
    early = sum(back - out for out, back in away if back < tokens[0])
    parts = {"queue": int(columns.scheduled_ns[request] - columns.arrival_ns[request])}
    parts |= {"prefill": int(tokens[0] - columns.scheduled_ns[request]) - early}
    parts |= {"decode": 0, "stall": 0, "preempted": early}
    for before, after in pairwise(tokens):
        if any(before <= back < after for _, back in away):
            parts["preempted"] += after - before
            continue
        begin = max(end for end in ends if end < after)
        stall = begin - before + stalls.get(after, 0)
        parts["stall"] += stall
        parts["decode"] += after - before - stall
    return parts


@given(
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 25),
    gap_ns=st.sampled_from([0.0, 1e6, 1e8]),
    prompt=st.sampled_from([5, 60, 300]),
    output=st.sampled_from([1, 8, 60]),
    slack=st.sampled_from([0, 20]),
    spare=st.integers(0, 40),
    asynchronous=st.booleans(),
    budget=st.sampled_from([8, 64, 512]),
    host_ns=st.sampled_from([0, 3 * MS, 8 * MS]),
)
def test_parts_equal_a_plain_account(
    seed: int,
    requests: int,
    gap_ns: float,
    prompt: int,
    output: int,
    slack: int,
    spare: int,
    asynchronous: bool,
    budget: int,
    host_ns: int,
) -> None:
    law, table = WindowLaw(window=33, host_ns=host_ns), random_table(seed, requests, gap_ns, prompt, output, slack)
    blocks = (prompt + output + slack) // 16 + 1 + spare
    scheduler = {"async_scheduling": asynchronous, "max_num_batched_tokens": budget, "max_num_seqs": 16}
    asked = scenario(PLACEHOLDER, {"base": "1ms"}, scheduler=scheduler)
    diary, service = Diary(), (Service(law, blocks, 10**8, 1),)
    watched = simulate(asked, table, service, observers=lambda _: diary)
    fast = attribute(simulate(asked, table, service))
    for request in range(requests):
        mine = account(watched, diary, law, request)
        assert {name: int(part[request]) for name, part in fast.items()} == mine


def test_preemptions_happen_in_these_runs() -> None:
    """The property above is about something: a run of its kind with preemptions of decodes and of prefills."""
    asked = scenario(PLACEHOLDER, {"base": "1ms"}, scheduler={"max_num_batched_tokens": 8, "max_num_seqs": 16})
    record = simulate(asked, random_table(3, 25, 0.0, 60, 60), (Service(WindowLaw(), 12, 10**8, 1),))
    lost = record.preemptions
    before_first_token = lost.resumed_ns < record.requests.first_token_ns[lost.request]
    assert 0 < before_first_token.sum() < len(lost.request)
    parts = attribute(record)
    assert parts["stall"].any() and parts["preempted"].any()


@pytest.mark.parametrize(
    ("asynchronous", "host", "expected_ms"), [(False, "0ms", 100), (False, "5ms", 100), (True, "5ms", 100)]
)
def test_a_long_prompt_beside_a_decode(asynchronous: bool, host: str, expected_ms: int) -> None:
    """A step takes 10 ms and 1 ms a prompt token: a prompt of 100 tokens stalls the decode beside it by 100 ms."""
    law = {"base": "10ms", "per_prefill_token": "1ms", "host": host}
    asked = scenario(PLACEHOLDER, law, scheduler={"async_scheduling": asynchronous})
    finished = run(asked, request_table([0, 40 * MS], [1, 100], [20, 2]))
    assert (attribute(finished.record)["stall"] / MS).tolist() == [expected_ms, 0]
    summary: dict[str, Any] = finished.summary
    assert summary["latency"]["stall_ms"]["max"] == expected_ms
    assert summary["attribution"]["mean"]["stall_ms"] == expected_ms / 2


def test_host_time_that_the_device_hides_stalls_nobody() -> None:
    """Asynchronously, the CPU prepares a step while the device runs the one before: only the device's time counts."""
    law = {"base": "10ms", "host": "9ms", "per_decode_token": "1ms"}
    asked = scenario(PLACEHOLDER, law, scheduler={"async_scheduling": True})
    finished = run(asked, request_table([0, 45 * MS], [1, 100], [20, 2]))
    assert np.all(finished.record.steps.stall_ns == 0)


# --- handed over: 10 + 40 ms of prefill, 39 or 40 ms of transfer, 10 ms a decode


@pytest.mark.parametrize(
    ("first_token", "prefill", "transfer"), [("decode", 50 + 10, 39), ("transfer", 50, 40), ("prefill", 50, 40)]
)
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_transfer_counts_until_the_decode_side_has_the_request(
    mode: str, first_token: str, prefill: int, transfer: int
) -> None:
    record = serve(apart({"first_token": first_token, "mode": mode}), [(0, 40, 3)]).record
    found = {name: (part / MS).tolist() for name, part in attribute(record).items()}
    expected = {"queue": 0, "prefill": prefill, "transfer": transfer, "decode": 20, "stall": 0, "preempted": 0}
    assert found == {name: [value] for name, value in expected.items()}


@pytest.mark.parametrize("first_token", ["decode", "transfer", "prefill"])
def test_a_transfer_that_fails_counts_with_the_prompt_that_is_computed_again(first_token: str) -> None:
    """39 or 40 ms of a transfer that is lost, and 50 ms, one more token's with a token delivered, to compute it."""
    record = serve(apart({"first_token": first_token, "failure_rate": 0.999999}), [(0, 40, 3)]).record
    assert record.transfers.recomputed.tolist() == [1]
    found = {name: float(part[0]) / MS for name, part in attribute(record).items()}
    computed = {"decode": 39 + 50, "transfer": 40 + 50, "prefill": 40 + 51}[first_token]
    assert (found["prefill"], found["transfer"]) == (50, computed)
    assert found["decode"] == (10 if first_token == "prefill" else 20)


def test_what_a_request_waits_for_on_a_full_decode_side_is_transfer() -> None:
    """One slot on the decode side: the second request is taken over when the first has gone."""
    record = serve(
        apart({"first_token": "prefill"}, decode={"scheduler": {"max_num_seqs": 1}}), [(0, 40, 9)] * 2
    ).record
    parts = attribute(record)
    assert parts["transfer"][1] >= parts["transfer"][0] + 8 * 10 * MS
    assert parts["stall"].sum() == 0


def test_stalls_that_are_not_told_apart_are_announced_and_not_0() -> None:
    def summary(*overrides: str) -> dict[str, Any]:
        return simulator.run("quickstart", ("workload.limit=20", *overrides)).summary

    def codes(of: dict[str, Any]) -> list[str]:
        return [warning["code"] for warning in of["warnings"]]

    pool, told = "deployment.pools.chat", summary()
    untold = summary(f"{pool}.pipeline_parallel=2", f"{pool}.scheduler.async_scheduling=false")
    assert "stall_not_told" not in codes(told)
    assert told["latency"]["stall_ms"]["count"] == 20
    assert "stall_not_told" in codes(untold)
    assert "stall_ms" not in untold["latency"] | untold["attribution"]["mean"]
    parts = [untold["attribution"]["mean"][f"{name}_ms"] for name in ("queue", "prefill", "decode", "preempted")]
    assert sum(parts) == pytest.approx(untold["attribution"]["mean"]["e2e_ms"])


def test_ranks_in_lockstep_for_prompts_alone_stall_nobody() -> None:
    ranks = {"data_parallel": 2}

    def told(side: str) -> bool:
        summary = serve(apart({}, **{side: ranks}, model="mixtral-8x7b"), [(0, 40, 9)] * 2).summary
        return "stall_ms" in summary["latency"]

    assert {side: told(side) for side in ("prefill", "decode")} == {"prefill": True, "decode": False}
