"""The lazy batch and the explicit one give the same token times, to the nanosecond, and the same states.

Their policies differ, too: the explicit batch keeps no totals, so that its policy serves the running list one by one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cost_models.shape import BatchShape, Ints, StepCost, costs_one_by_one
from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.errors import StalledError
from simulator.memory import BlockPool
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.results.segments import token_time_digest
from simulator.routing import Arrival, Load, routers
from simulator.routing.routers import LeastTokens
from simulator.scheduling import Plan, View
from simulator.scheduling.policies import POLICIES, Entry
from simulator.scheduling.vllm import VllmPolicy
from simulator.scheduling.vllm_settings import vllm_limits
from simulator.workload.requests import ClosedLoop, RequestTable
from tests.helpers import PLACEHOLDER, request_table, scenario


class WindowLaw:
    """A linear law that also depends on the sliding window, so that it depends on every total of the shape."""

    def __init__(self, window: int = 0, host_ns: int = 0) -> None:
        self.window = window
        self.host_ns = host_ns

    def step_cost(self, shape: BatchShape) -> StepCost:
        chunks = sum(tokens + context for tokens, context in shape.chunks)
        device_ns = 5_000_000 + 20_000 * shape.tokens + 40 * (shape.decode_context + chunks)
        device_ns += 13 * shape.decode_window_context + 7 * shape.sampled + 3 * shape.new_requests
        return StepCost(device_ns, self.host_ns)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        shapes = [shape._replace(decode_context=shape.decode_context + i * shape.decodes) for i in range(k)]
        return np.array([self.step_cost(each).device_ns for each in shapes], np.int64)

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        return costs_one_by_one(self, decodes, context, window_context)


def every_way(
    table: RequestTable, law: WindowLaw, blocks: int, max_model_len: int = 10**8, **keys: Any
) -> list[RunRecord]:
    """The same run through each engine, with conservation checked at every step; and through the lazy one without, as
    users run it, where it coasts through steps in which nothing changes."""
    scheduler = {"max_num_batched_tokens": 512, "max_num_seqs": 64} | keys.pop("scheduler", {})
    memory = {"block_size": keys.pop("block_size", 16)} | keys.pop("memory", {})
    horizon = keys.pop("horizon", None)
    records = []
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        options = {"engine": engine, "checks": checks} | ({"horizon": horizon} if horizon else {})
        asked = scenario(PLACEHOLDER, {"base": "1ms"}, scheduler=scheduler, memory=memory, run=options, **keys)
        records.append(simulate(asked, table, [Service(law, blocks, max_model_len, 1)]))
        check(records[-1])
    return records


def assert_equal(plain: RunRecord, *lazies: RunRecord) -> None:
    for lazy in lazies:
        assert_same(lazy, plain)


def assert_same(lazy: RunRecord, plain: RunRecord) -> None:
    assert token_time_digest(lazy) == token_time_digest(plain)
    for columns in ("requests", "preemptions", "steps", "segments"):
        ours, theirs = getattr(lazy, columns), getattr(plain, columns)
        for field in dataclasses.fields(ours):
            assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name
    assert (lazy.start_ns, lazy.end_ns) == (plain.start_ns, plain.end_ns)


def random_table(seed: int, requests: int, gap_ns: float, prompt: int, output: int, slack: int = 0) -> RequestTable:
    draw = np.random.default_rng(seed)
    outputs = draw.integers(1, output + 1, requests)
    return request_table(
        np.cumsum(draw.exponential(gap_ns, requests)).astype(np.int64).tolist(),
        draw.integers(1, prompt + 1, requests).tolist(),
        outputs.tolist(),
        (outputs + draw.integers(0, slack + 1, requests)).tolist(),
    )


def with_priorities(table: RequestTable, seed: int) -> RequestTable:
    """Return the requests with three priorities."""
    ranks = np.random.default_rng(seed).integers(0, 3, len(table))
    return dataclasses.replace(table, extras={"priority": ranks})


#: Orders of scheduling and of preemption.
ORDERS: dict[str, dict[str, Any]] = {
    "arrival": {},
    "priority": {"scheduling_policy": "priority"},
    "priority, preempted first": {"scheduling_policy": "priority", "preempted_first": True},
    "arrival, least computed gives way": {"preemption_victim": "least_computed"},
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("order", ORDERS)
def test_who_is_first_and_who_gives_way(order: str, asynchronous: bool) -> None:
    """Under the pressure of a small pool, with ends that are not foreseen, and budgets that not all decodes fit."""
    preemptions = 0
    for seed in range(12):
        table = with_priorities(random_table(seed, 80, 1e5, 60, 120, 30), seed)
        scheduler = ORDERS[order] | {"async_scheduling": asynchronous, "max_num_batched_tokens": (8, 64, 512)[seed % 3]}
        explicit, *lazies = every_way(table, WindowLaw(48 * (seed % 2)), 40 + seed, scheduler=scheduler)
        assert_equal(explicit, *lazies)
        preemptions += int(explicit.requests.preemptions.sum())
    assert preemptions > 200


CASES: dict[str, dict[str, Any]] = {
    "steady": {"table": (1, 400, 2e7, 300, 80), "blocks": 10_000},
    "light load": {"table": (14, 60, 1e9, 300, 300), "blocks": 10_000},
    "light load, asynchronous": {
        "table": (15, 60, 1e9, 300, 300, 20),
        "blocks": 10_000,
        "scheduler": {"async_scheduling": True},
    },
    "light load, asynchronous, host time": {
        "table": (16, 60, 1e9, 300, 300, 20),
        "blocks": 60,
        "law": WindowLaw(window=64, host_ns=8_000_000),
        "scheduler": {"async_scheduling": True},
    },
    "light load, horizon": {"table": (17, 60, 1e9, 300, 300), "blocks": 10_000, "horizon": "9999ms"},
    "burst": {"table": (2, 300, 0.0, 200, 60), "blocks": 2_000},
    "preemption storm": {"table": (3, 200, 1e5, 60, 200), "blocks": 60},
    "storm without reservation": {
        "table": (4, 150, 1e5, 400, 100),
        "blocks": 60,
        "scheduler": {"scheduler_reserve_full_isl": False, "watermark": 0.05},
    },
    "asynchronous": {"table": (5, 300, 1e6, 200, 50), "blocks": 1_000, "scheduler": {"async_scheduling": True}},
    "asynchronous storm, unforeseen ends": {
        "table": (6, 200, 1e5, 60, 120, 40),
        "blocks": 40,
        "scheduler": {"async_scheduling": True},
    },
    "long-prefill threshold": {
        "table": (7, 200, 1e6, 2_000, 40),
        "blocks": 3_000,
        "scheduler": {"long_prefill_token_threshold": 40, "max_num_batched_tokens": 128},
    },
    "small budget": {"table": (8, 150, 1e6, 60, 60), "blocks": 400, "scheduler": {"max_num_batched_tokens": 8}},
    "sliding window": {"table": (9, 200, 1e6, 300, 100), "blocks": 400, "law": WindowLaw(window=64)},
    "fleet": {
        "table": (10, 400, 1e6, 200, 60),
        "blocks": 60,
        "replicas": 3,
        "router": {"policy": "least_tokens"},
        "scheduler": {"async_scheduling": True},
    },
    "blocks of one token": {"table": (11, 100, 1e6, 50, 50), "blocks": 400, "block_size": 1},
    "horizon": {"table": (12, 300, 1e6, 200, 80), "blocks": 1_000, "horizon": "700ms"},
    "horizon, asynchronous": {
        "table": (12, 300, 1e6, 200, 80),
        "blocks": 100,
        "horizon": "700ms",
        "scheduler": {"async_scheduling": True},
    },
    "host time": {
        "table": (13, 200, 1e6, 200, 50),
        "blocks": 1_000,
        "law": WindowLaw(host_ns=6_000_000),
        "scheduler": {"async_scheduling": True},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_token_times_and_states_are_equal(name: str) -> None:
    case = dict(CASES[name])
    table = random_table(*case.pop("table"))
    plain, *lazies = every_way(table, case.pop("law", WindowLaw()), case.pop("blocks"), **case)
    assert_equal(plain, *lazies)
    if "storm" in name:
        assert plain.requests.preemptions.sum() > 20


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_clock_that_stops_at_any_moment(replicas: int) -> None:
    """Under preemption and asynchronous scheduling, tokens may be in flight when the clock stops."""
    table = random_table(6, 60, 1e5, 60, 120, 40)
    settings_ = {"scheduler": {"async_scheduling": True}, "replicas": replicas}
    for horizon_ms in range(5, 1200, 37):
        assert_equal(*every_way(table, WindowLaw(), 40, horizon=f"{horizon_ms}ms", **settings_))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_router_sees_the_same_tokens(monkeypatch: pytest.MonkeyPatch, asynchronous: bool) -> None:
    """`known_tokens` counts delivered tokens, but not those of a wasted step; compared at every choice of a router."""
    seen: list[list[int]] = []

    class Watcher(LeastTokens):
        def choose(self, request: Arrival, loads: list[Load]) -> Load:
            seen[-1] += [load.known_tokens for load in loads]
            return super().choose(request, loads)

    monkeypatch.setitem(routers._BUILDERS, "least_tokens", lambda settings, seed: seen.append([]) or Watcher())
    table = random_table(50, 150, 3e7, 60, 90, 25)
    every_way(
        table,
        WindowLaw(),
        60,
        router={"policy": "least_tokens"},
        replicas=2,
        scheduler={"async_scheduling": asynchronous},
    )
    assert len(seen[0]) == 300
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("caching", [False, True])
def test_coasting_spares_the_policy(monkeypatch: pytest.MonkeyPatch, caching: bool) -> None:
    calls = 0

    class Counted(VllmPolicy):
        def schedule(self, view: View, pool: BlockPool) -> Plan:
            nonlocal calls
            calls += 1
            return super().schedule(view, pool)

    monkeypatch.setitem(POLICIES, "vllm", Entry(Counted, vllm_limits))
    asked = scenario(PLACEHOLDER, {"base": "1ms"}, scheduler={"enable_prefix_caching": caching})
    record = simulate(asked, request_table([0], [10], [5000]), [Service(WindowLaw(), 10_000, 10**8, 1)])
    assert len(record.steps.end_ns) == 5000
    assert calls < 500


class GridLaw(WindowLaw):
    """Every step takes 10 ms, so that steps end on a grid."""

    def step_cost(self, shape: BatchShape) -> StepCost:
        return StepCost(10_000_000, self.host_ns)


#: Times of arrival, in ms, and outputs: ends of steps while a lone sequence decodes, which the lazy engine coasts
#: through, and moments between them.
GRID = [(0, 200), (150, 3), (310, 40), (310, 2), (1000, 120), (1200, 1), (1495, 5), (1500, 5), (4000, 60), (4300, 9)]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("host_ms", [0, 4, 10, 13])
@pytest.mark.parametrize("shift_ns", [-1, 0, 1])
@pytest.mark.parametrize("replicas", [1, 2])
def test_arrivals_at_the_very_moment_of_a_step(asynchronous: bool, host_ms: int, shift_ns: int, replicas: int) -> None:
    """Also a nanosecond earlier or later: the step formed at the end of another includes an arrival of that instant."""
    law = GridLaw(host_ns=host_ms * 1_000_000)
    step_ms = max(10, host_ms) if asynchronous else 10 + host_ms
    first_ms = 10 + host_ms  # when the first step ends
    table = request_table(
        [max(0, (at // 10 * step_ms + (first_ms if at else 0)) * 1_000_000 + shift_ns) for at, _ in GRID],
        [1] * len(GRID),
        [output for _, output in GRID],
    )
    settings_ = {"async_scheduling": asynchronous, "max_num_seqs": 3}
    plain, *lazies = every_way(table, law, 1000, scheduler=settings_, replicas=replicas)
    assert_equal(plain, *lazies)
    ends, arrivals = set(plain.steps.end_ns.tolist()), plain.requests.arrival_ns.tolist()
    assert sum(at in ends for at in arrivals[1:]) >= (5 if shift_ns == 0 else 0)


def test_what_comes_at_the_end_of_a_step_is_in_the_next() -> None:
    """A nanosecond later it is in the step after it, also if the engine coasts."""
    table = request_table([0, 200_000_000, 400_000_001], [1, 1, 1], [100, 1, 1])
    for record in every_way(table, GridLaw(), 1000):
        assert record.requests.scheduled_ns.tolist() == [0, 200_000_000, 410_000_000]


class PromptLaw(WindowLaw):
    """A step takes 10 ms, and one with a prompt of two tokens 20 ms."""

    def step_cost(self, shape: BatchShape) -> StepCost:
        return StepCost(10_000_000 * max([1, *(tokens for tokens, _ in shape.chunks)]), 0)


def test_who_answers_after_thinking_comes_before_a_step_that_is_formed_then() -> None:
    """Two replicas: while the first computes for 20 ms, the other one's client gets its answer at 10 ms, and sends the
    next request, which is the first one's, 10 ms later."""
    table = request_table([0, 0, 0], [2, 1, 1], [5, 1, 1])
    table = dataclasses.replace(table, closed_loop=ClosedLoop(2, np.array([0, 0, 10_000_000])))
    for record in every_way(table, PromptLaw(), 1000, replicas=2):
        assert record.requests.replica.tolist() == [0, 1, 0]
        assert record.requests.scheduled_ns.tolist() == [0, 0, 20_000_000]


@pytest.mark.parametrize("kind", ["gate", "closed loop"])
def test_a_refused_request_frees_its_client(kind: str) -> None:
    """Every third request is too long for the context; neither a slot of the gate nor a client is lost with it."""
    prompts = [5000 if i % 3 == 1 else 20 for i in range(90)]
    table = request_table(list(range(0, 90_000, 1000)), prompts, [10] * 90)
    if kind == "gate":
        table = dataclasses.replace(table, max_concurrency=2)
    else:
        loop = ClosedLoop(2, np.arange(90) % 2 * 1_000_000)
        table = dataclasses.replace(table, arrival_ns=np.zeros(90, np.int64), closed_loop=loop)
    records = every_way(table, WindowLaw(), 1000, max_model_len=1000)
    assert_equal(*records)
    assert np.bincount(records[0].requests.status).tolist() == [0, 0, 60, 30]
    under_way = records[0].steps.running + records[0].steps.waiting
    assert under_way.max() == 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_clients_that_wait_for_answers(asynchronous: bool) -> None:
    table = random_table(20, 300, 0.0, 100, 40, 10)
    thinking = np.random.default_rng(1).integers(0, 2, 300) * 30_000_000
    closed = dataclasses.replace(table, closed_loop=ClosedLoop(12, thinking))
    gated = dataclasses.replace(random_table(21, 300, 1e6, 100, 40), max_concurrency=9)
    for load in (closed, gated):
        assert_equal(*every_way(load, WindowLaw(), 40, scheduler={"async_scheduling": asynchronous}))


class FickleVllm(VllmPolicy):
    """Holds back decodes, now and then: by the contract a plan may do so, though the vLLM policy hardly ever does."""

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        plan = super().schedule(view, pool)
        held = [seq for seq in view.oldest_first() if seq.decoding and seq.todo and seq not in plan.preempted]
        self.calls += 1
        held = [seq for seq in held[1:] if (seq.index + self.calls) % 3 == 0]  # one advances, so that requests end
        self.held += len(held)
        for seq in held:  # what the policy has taken for them, it gives back
            pool.free += pool.blocks_for(seq.computed + 1) - pool.blocks_for(seq.computed)
            seq.blocks = pool.blocks_for(seq.computed)
        return Plan(plan.preempted, plan.admitted, plan.chunks, held)  # never STEADY, which would be a promise

    calls = held = 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("slack", [0, 30])
def test_held_decodes(monkeypatch: pytest.MonkeyPatch, asynchronous: bool, slack: int) -> None:
    monkeypatch.setitem(POLICIES, "vllm", Entry(FickleVllm, vllm_limits))
    table = random_table(30, 120, 1e6, 60, 60, slack)
    assert_equal(*every_way(table, WindowLaw(window=40), 500, scheduler={"async_scheduling": asynchronous}))
    assert_equal(*every_way(table, WindowLaw(), 60, scheduler={"async_scheduling": asynchronous}))


class Stubborn(VllmPolicy):
    """Preempts the last of three and holds the two others, once: a step in which nothing is computed."""

    done = False

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        running = list(view.oldest_first())
        if len(running) == 3 and not self.done and all(seq.computed > 20 for seq in running):
            self.done = True
            pool.release(running[-1])
            return Plan(preempted=running[-1:], held=running[:-1])
        return Plan(*super().schedule(view, pool))


def test_a_plan_that_preempts_and_holds_everybody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "vllm", Entry(Stubborn, vllm_limits))
    assert_equal(*every_way(request_table([0, 0, 0], [16, 16, 16], [30, 20, 25]), WindowLaw(), 100))


class Deaf(VllmPolicy):
    """A policy that admits no request."""

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        return Plan()


@pytest.mark.parametrize("horizon", [None, "60s"])
def test_a_deadlock_is_reported(monkeypatch: pytest.MonkeyPatch, horizon: str | None) -> None:
    monkeypatch.setitem(POLICIES, "vllm", Entry(Deaf, vllm_limits))
    with pytest.raises(StalledError, match="nothing can be scheduled any more: 0 running, 5 waiting"):
        every_way(random_table(40, 5, 1e6, 60, 60), WindowLaw(), 100, horizon=horizon)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 40),
    gap_ns=st.sampled_from([0.0, 1e5, 1e7, 1e8]),
    prompt=st.sampled_from([5, 60, 700]),
    output=st.sampled_from([1, 8, 90]),
    slack=st.sampled_from([0, 20]),
    spare=st.integers(0, 60),
    asynchronous=st.booleans(),
    threshold=st.sampled_from([0, 7]),
    budget=st.sampled_from([8, 64, 2048]),
    seqs=st.sampled_from([1, 3, 32]),
    window=st.sampled_from([0, 33]),
)
def test_random_runs(
    seed: int,
    requests: int,
    gap_ns: float,
    prompt: int,
    output: int,
    slack: int,
    spare: int,
    asynchronous: bool,
    threshold: int,
    budget: int,
    seqs: int,
    window: int,
) -> None:
    table = random_table(seed, requests, gap_ns, prompt, output, slack)
    blocks = int((table.prompt_tokens + table.max_tokens).max()) // 16 + 2 + spare
    settings_ = {
        "async_scheduling": asynchronous,
        "long_prefill_token_threshold": threshold,
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
    }
    assert_equal(*every_way(table, WindowLaw(window), blocks, scheduler=settings_))
