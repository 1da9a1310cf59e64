"""Every policy under every allocation of memory: no answer of a pool is dropped, and memory is never given twice."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest

from simulator.engine.batches import build as parts
from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.memory import BlockPool
from simulator.memory.pool import Holder
from simulator.results.columns import Status
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.scheduling.orca import OrcaPolicy
from simulator.scheduling.policies import POLICIES, changes
from tests.conftest import ROOT
from tests.engine.test_handover import apart
from tests.engine.test_lazy_equals_explicit import WindowLaw, assert_same, random_table
from tests.helpers import PLACEHOLDER, run, scenario

#: The verbs that can refuse.
VERBS = {"grow", "fits", "reserve"}
#: Further settings of a policy that change how it asks for memory.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "vllm": [
        {"version": "none"},
        {"version": "none", "scheduler_reserve_full_isl": False, "watermark": 0.1},
        {"version": "none", "scheduling_policy": "priority", "async_scheduling": True},
    ],
    "sglang": [
        {"enable_prefix_caching": False},
        {"enable_prefix_caching": False, "enable_mixed_chunk": True, "schedule_conservativeness": 0.05},
    ],
    "tensorrt_llm": [
        {"capacity_scheduler_policy": capacity, "enable_chunked_context": chunked}
        for capacity, chunked in (("GUARANTEED_NO_EVICT", True), ("MAX_UTILIZATION", True), ("STATIC_BATCH", False))
    ],
    "static": [{}, {"padded": True}],
    "sarathi": [{"watermark": 0.1}, {"chunked": False}, {"batching": "alternating"}],
}
CASES = [(policy, variant) for policy in POLICIES for variant in VARIANTS.get(policy, [{}])]
ALLOCATIONS = ["paged", "contiguous", "contiguous_exact"]
LENGTH = 210


class Answer:
    """The result of a call, refused or not, which records that the caller has used it."""

    def __init__(self, value: bool, unseen: list[Answer]) -> None:
        self.value, self._unseen = value, unseen
        unseen.append(self)

    def __bool__(self) -> bool:
        if self in self._unseen:
            self._unseen.remove(self)
        return self.value


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """Record the unused results of all pools that are built from now on."""
    answers: list[Answer] = []
    build = parts.build_pool

    def asked(*arguments: Any, **keys: Any) -> BlockPool:
        pool = build(*arguments, **keys)
        kind = type(pool)

        class PoolLimits(kind):  # type: ignore[valid-type,misc]
            __slots__ = ()

            def grow(self, holder: Holder, tokens: int) -> bool:
                return Answer(super().grow(holder, tokens), answers)  # type: ignore[return-value]

            def fits(self, holder: Holder, hits: Any, tokens: int, spare: int = 0) -> bool:
                return Answer(super().fits(holder, hits, tokens, spare), answers)  # type: ignore[return-value]

        pool.__class__ = PoolLimits
        return pool

    monkeypatch.setattr(parts, "build_pool", asked)
    return answers


def served_apart(policy: str, variant: dict[str, Any], allocation: str, blocks: int, engine: str) -> RunRecord:
    """Return the run of a disaggregated policy, whose decode pool is vLLM if it cannot decode transferred prompts."""
    once = policy == "static" or variant.get("capacity_scheduler_policy") == "STATIC_BATCH"
    limits = {"max_num_batched_tokens": 400, "max_num_seqs": 16, "max_model_len": LENGTH}
    pools: list[dict[str, Any]] = [
        {"scheduler": settings | limits, "memory": {"kv_blocks": blocks, "allocation": allocation}}
        for settings in (
            variant | {"policy": policy},
            {"policy": "vllm", "version": "none"} if once else variant | {"policy": policy},
        )
    ]
    asked = apart({"first_token": "prefill"}, *pools, run={"checks": True, "engine": engine})
    return run(asked, random_table(7, 40, 1e5, 60, 120, 30)).record


def served(policy: str, variant: dict[str, Any], allocation: str, blocks: int, engine: str) -> RunRecord:
    asked = scenario(
        PLACEHOLDER,
        {"base": "1ms"},
        scheduler={"policy": policy, "max_num_batched_tokens": 400, "max_num_seqs": 16} | variant,
        memory={"allocation": allocation},
        run={"checks": True, "engine": engine},
    )
    table = random_table(6, 40, 1e5, 60, 120, 30)
    return simulate(asked, table, [Service(WindowLaw(50), blocks, LENGTH, 1)])


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize(("policy", "variant"), CASES)
def test_every_policy_under_every_allocation(
    policy: str, variant: dict[str, Any], allocation: str, unseen: list[Answer]
) -> None:
    """Memory holds a few sequences, and many wait."""
    for blocks in (15, 45):
        for way in [served_apart] if policy == "distserve" else [served, served_apart]:
            records = [way(policy, variant, allocation, blocks, engine) for engine in ("explicit", "auto")]
            assert_same(*records)
            for record in records:
                check(record)
                assert (record.requests.status == Status.COMPLETED).all()
            assert record.steps.waiting.max() > 5
            assert allocation == "paged" or not record.requests.preemptions.any()
            if allocation == "contiguous":
                assert record.steps.running.max() <= max(1, blocks // -(-LENGTH // 16)) + (way is served_apart)
    assert not unseen


def test_an_answer_that_nobody_looks_at_is_found(unseen: list[Answer]) -> None:
    class Careless(OrcaPolicy):
        def schedule(self, view: Any, pool: BlockPool) -> Any:
            for seq in view.waiting:
                pool.fits(seq, (), 1)
            return super().schedule(view, pool)

    before = POLICIES["orca"]
    try:
        POLICIES["orca"] = changes(Careless)
        served("orca", {}, "paged", 45, "auto")
    finally:
        POLICIES["orca"] = before
    assert unseen


def test_no_call_of_a_verb_that_can_refuse_stands_alone() -> None:
    """In all of the simulator: its answer is part of an expression, or of a condition."""
    dropped, calls = [], 0
    for path in sorted((ROOT / "simulator").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            calls += isinstance(node, ast.Call) and getattr(node.func, "attr", None) in VERBS
            called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
            if getattr(called, "attr", None) in VERBS:
                dropped.append(f"{path}:{node.lineno}")
    assert calls > 10
    assert not dropped


@pytest.mark.parametrize("policy", ["sglang", "tensorrt_llm"])
def test_as_many_pieces_as_memory_holds(policy: str) -> None:
    """Forty prompts at once, each with a piece of 14 blocks, in memory of 100: seven run."""
    settings = {"enable_prefix_caching": False} if policy == "sglang" else {}
    record = served(policy, settings, "contiguous", 100, "auto")
    assert record.steps.running.max() == 7
    assert record.steps.kv_used.max() == 7 * 14
    assert np.all(record.requests.preemptions == 0)
