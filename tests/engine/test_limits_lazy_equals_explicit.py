"""The lazy batch equals the explicit one under limits of the context, of partial prefills and of the KV memory."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import StalledError
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.study.prepare import prepare
from simulator.study.run import execute
from tests.engine.test_lazy_equals_explicit import assert_same
from tests.helpers import scenario

WORKLOAD = {
    "arrivals": {"process": "gamma", "rate": 60, "cv": 2},
    "requests": 120,
    "prompt_tokens": {"distribution": "lognormal", "mean": 120, "cv": 1.0},
    "output_tokens": {"distribution": "geometric", "mean": 50},
    "prompt_pool": {"prompts": 30, "groups": 3, "shared_prefix_tokens": 64},
}
LINEAR = {"base": "5ms", "per_token": "20us", "per_context_token": "10ns"}
LIMITS: dict[str, dict[str, Any]] = {
    "cut": {"context_overflow": "cut", "max_model_len": 200},
    "one partial prefill": {"max_num_partial_prefills": 1, "long_prefill_token_threshold": 64},
    "two partial prefills": {"max_num_partial_prefills": 2, "max_num_batched_tokens": 150},
    "wait": {"pool_overflow": "wait", "max_model_len": 4000},
    "all": {
        "context_overflow": "cut",
        "max_model_len": 300,
        "max_num_partial_prefills": 1,
        "long_prefill_token_threshold": 40,
        "pool_overflow": "wait",
        "scheduler_reserve_full_isl": False,
    },
}


def run(scheduler: dict[str, Any], engine: str, **keys: Any) -> RunRecord:
    asked = scenario(
        WORKLOAD | keys.get("workload", {}),
        LINEAR,
        scheduler={"max_num_batched_tokens": 256, "max_num_seqs": 48} | scheduler,
        memory={"kv_blocks": keys["kv_blocks"]},
        run={"engine": engine, "checks": True},
        seed=keys["seed"],
    )
    return execute(prepare(asked)).record


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
def test_lazy_equals_explicit(limit: str, asynchronous: bool, caching: bool, seed: int) -> None:
    scheduler = {"async_scheduling": asynchronous, "enable_prefix_caching": caching} | LIMITS[limit]
    keys = {"kv_blocks": 75 if "wait" not in limit else 110, "seed": seed}
    if seed:  # ends that the scheduler does not foresee, unless they are at the context limit
        keys["workload"] = {"max_tokens": 150}
    lazy, explicit = (run(scheduler, engine, **keys) for engine in ("lazy", "explicit"))
    assert_same(lazy, explicit)
    check(lazy)
    if limit == "cut":
        requests = lazy.requests
        assert (requests.prompt_tokens + requests.emitted_tokens == 200).sum() > 3


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("engine", ["lazy", "explicit"])
def test_requests_larger_than_the_memory_stall(engine: str, reserve: bool, asynchronous: bool) -> None:
    scheduler: dict[str, Any] = {"pool_overflow": "wait", "max_num_batched_tokens": 64}
    scheduler |= {"scheduler_reserve_full_isl": reserve, "async_scheduling": asynchronous}
    message = "waiting" if reserve else "needs more KV blocks than there are"
    with pytest.raises(StalledError, match=message):
        run(scheduler, engine, kv_blocks=10, seed=0)
