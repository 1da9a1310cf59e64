"""Every built-in policy, paused decodes and memory in one piece: the lazy and the explicit batch agree."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.memory import BlockPool
from simulator.results.integrity import check
from simulator.scheduling import Plan, View
from simulator.scheduling.policies import POLICIES, Entry
from simulator.scheduling.vllm import VllmPolicy
from simulator.scheduling.vllm_settings import vllm_limits
from tests.engine.test_handover import apart
from tests.engine.test_lazy_equals_explicit import WindowLaw, assert_equal, assert_same, every_way, random_table
from tests.helpers import run

POLICY_CASES: dict[str, dict[str, Any]] = {
    "static": {"policy": "static", "max_num_seqs": 8},
    "static, padded": {"policy": "static", "max_num_seqs": 8, "padded": True},
    "orca": {"policy": "orca"},
    "prefill first": {"policy": "prefill_first"},
    "sarathi": {"policy": "sarathi", "max_num_batched_tokens": 64},
    "sarathi without chunks": {"policy": "sarathi", "chunked": False},
    "sarathi in turns": {"policy": "sarathi", "batching": "alternating", "max_num_batched_tokens": 64},
    "sarathi in turns without chunks": {"policy": "sarathi", "batching": "alternating", "chunked": False},
}
#: Those that may take a decode's memory away.
PREEMPTING = {name for name in POLICY_CASES if not name.startswith(("static", "orca"))}


@pytest.mark.parametrize("name", POLICY_CASES)
@pytest.mark.parametrize("load", ["steady", "light", "burst", "scarce", "horizon", "two replicas"])
def test_every_policy(name: str, load: str) -> None:
    scarce = {"table": (74, 150, 1e5, 60, 120, 30), "blocks": 50}
    case: dict[str, Any] = {
        "steady": {"table": (71, 200, 2e7, 300, 80), "blocks": 10_000},
        "light": {"table": (72, 40, 1e9, 300, 300), "blocks": 10_000},
        "burst": {"table": (73, 200, 0.0, 200, 60), "blocks": 2_000, "law": WindowLaw(window=64)},
        "scarce": scarce,
        "horizon": {**scarce, "horizon": "750ms"},
        "two replicas": {"table": (75, 200, 1e6, 200, 60), "blocks": 60, "replicas": 2},
    }[load]
    table = random_table(*case.pop("table"))
    plain, *lazies = every_way(
        table, case.pop("law", WindowLaw()), case.pop("blocks"), scheduler=POLICY_CASES[name], **case
    )
    assert_equal(plain, *lazies)
    preempted = int(plain.requests.preemptions.sum())
    assert preempted > 10 if name in PREEMPTING and load == "scarce" else name in PREEMPTING or not preempted


@pytest.mark.parametrize("allocation", ["contiguous", "contiguous_exact"])
@pytest.mark.parametrize("policy", ["vllm", "prefill_first", "sarathi", "static"])
def test_contiguous_memory(allocation: str, policy: str) -> None:
    """Nothing is ever preempted."""
    table = random_table(80, 120, 1e6, 60, 120, 30)
    keys = {"scheduler": {"policy": policy}, "memory": {"allocation": allocation}}
    plain, *lazies = every_way(table, WindowLaw(), 60, max_model_len=210, **keys)
    assert_equal(plain, *lazies)
    assert not plain.requests.preemptions.any()
    assert plain.steps.waiting.max() > 20


class Halting(VllmPolicy):
    """Pauses all decodes when there are chunks."""

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        running = [seq for seq in view.oldest_first() if seq.decoding and seq.todo]
        before = {seq.index: seq.blocks for seq in running}
        plan = super().schedule(view, pool)
        if not plan.chunks or plan.held:
            return Plan(*plan)  # never STEADY: the next answer may be another
        for seq in running:  # what the policy has taken for them, it gives back
            if seq not in plan.preempted:
                pool.free += pool.blocks_for(seq.computed + 1) - before[seq.index]
                seq.blocks = before[seq.index]
        return plan._replace(paused=True)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("requeue", ["front", "back", "order"])
@pytest.mark.parametrize("blocks", [60, 500])
def test_paused_decodes(monkeypatch: pytest.MonkeyPatch, asynchronous: bool, requeue: str, blocks: int) -> None:
    entry = Entry(Halting, lambda settings: vllm_limits(settings)._replace(requeue=requeue))
    monkeypatch.setitem(POLICIES, "vllm", entry)
    for slack, horizon in ((0, None), (30, None), (30, "900ms")):
        table = random_table(60 + slack, 120, 1e6, 60, 60, slack)
        keys = {"horizon": horizon, "scheduler": {"async_scheduling": asynchronous}}
        plain, *lazies = every_way(table, WindowLaw(window=40), blocks, **keys)
        assert_equal(plain, *lazies)
        assert len(plain.steps.paused) > 20
    assert blocks > 60 or plain.requests.preemptions.sum() > 10


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("distserve", "distserve"), ("static", "vllm"), ("orca", "orca"), ("sarathi", "sarathi"), ("vllm", "orca")],
)
def test_pools_that_do_one_of_the_two(before: str, after: str, first_token: str) -> None:
    table, records = random_table(95, 150, 1e5, 60, 120, 20), []
    limits = {"max_num_batched_tokens": 400, "max_model_len": 400}
    for engine in ("explicit", "lazy"):
        pools = [{"scheduler": {"policy": policy} | limits, "memory": {"kv_blocks": 24}} for policy in (before, after)]
        asked = apart({"first_token": first_token}, *pools, run={"checks": True, "engine": engine})
        records.append(run(asked, table).record)
        check(records[-1])
    assert_same(*records)
    assert records[0].steps.waiting.max() > 5
    assert bool(records[0].requests.preemptions.sum()) is (after != "orca")


class ShortestFirst(VllmPolicy):
    """A policy that admits the shortest waiting prompt, at any position of the queue."""

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        return super().schedule(cast(View, _Sorted(view)), pool)


class _Sorted:
    def __init__(self, view: View) -> None:
        self._view = view
        self.waiting = deque(sorted(view.waiting, key=lambda seq: (seq.target, seq.index)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


@pytest.mark.parametrize("blocks", [60, 500])
def test_admission_from_anywhere_in_the_queue(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    monkeypatch.setitem(POLICIES, "vllm", Entry(ShortestFirst, vllm_limits))
    table = random_table(90, 120, 1e6, 60, 60)
    plain, *lazies = every_way(table, WindowLaw(), blocks, scheduler={"max_num_seqs": 6})
    assert_equal(plain, *lazies)
    assert (np.diff(plain.requests.scheduled_ns) < 0).sum() > 20


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICY_CASES)),
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 40),
    gap_ns=st.sampled_from([0.0, 1e5, 1e7, 1e8]),
    prompt=st.sampled_from([5, 60, 500]),
    output=st.sampled_from([1, 8, 90]),
    slack=st.sampled_from([0, 20]),
    spare=st.integers(0, 60),
    seqs=st.sampled_from([1, 3, 32]),
    budget=st.sampled_from([8, 64, 700]),
    allocation=st.sampled_from(["paged", "paged", "contiguous", "contiguous_exact"]),
)
def test_random_runs(
    policy: str,
    seed: int,
    requests: int,
    gap_ns: float,
    prompt: int,
    output: int,
    slack: int,
    spare: int,
    seqs: int,
    budget: int,
    allocation: str,
) -> None:
    table = random_table(seed, requests, gap_ns, prompt, output, slack)
    length = int((table.prompt_tokens + table.max_tokens).max())
    chunked = policy in ("sarathi", "sarathi in turns")
    asked = POLICY_CASES[policy] | {"max_num_seqs": seqs, "max_num_batched_tokens": budget if chunked else 700}
    blocks = length // 16 + 2 + spare
    memory = {"allocation": allocation}
    assert_equal(*every_way(table, WindowLaw(33), blocks, length, scheduler=asked, memory=memory))
