"""Simulated time ends with a clear error long before sums of times leave 64 bits."""

from __future__ import annotations

import pytest

from simulator import run
from simulator.errors import InputError

POOL = {
    "gpu": "h100-sxm",
    "cost_model": {"kind": "linear", "base": "1d"},
    "memory": {"kv_blocks": 10_000},
    "scheduler": {"version": "none", "max_model_len": 10**6},
}
SCENARIO = {
    "name": "slow",
    "model": "llama-3.1-8b",
    "workload": {"arrivals": {"process": "all_at_once"}, "requests": 1, "prompt_tokens": 4, "output_tokens": 10},
    "deployment": {
        "pools": {
            "m": {"gpu": "h100-sxm", "cost_model": {"kind": "linear", "base": "1d"}, "memory": {"kv_blocks": 10000}}
        }
    },
}


def test_steps_of_a_day() -> None:
    record = run(SCENARIO).record
    assert record.end_ns == 10 * 86_400 * 10**9


@pytest.mark.parametrize(
    "overrides",
    [
        {"workload.output_tokens": 40_000},  # steps of a day
        {  # steps that end far beyond 64 bits
            "workload.requests": 200,
            "workload.prompt_tokens": 9_000_000,
            "deployment.pools.m.cost_model.per_context_token": "60s",
            "deployment.pools.m.scheduler.max_model_len": 10**8,
            "deployment.pools.m.scheduler.max_num_batched_tokens": 10**8,
            "deployment.pools.m.memory.kv_blocks": 10**9,
        },
    ],
)
def test_more_than_a_century(overrides: dict[str, object]) -> None:
    with pytest.raises(InputError, match="the simulated time passes a century"):
        run(SCENARIO, overrides)


def test_a_horizon_ends_it_before() -> None:
    overrides = {
        "workload.output_tokens": 60_000,
        "run.horizon": "10d",
        "deployment.pools.m.scheduler.max_model_len": 10**6,
    }
    assert run(SCENARIO, overrides).record.end_ns == 10 * 86_400 * 10**9


@pytest.mark.parametrize(("key", "value"), [("base", "20000d"), ("per_token", "2min"), ("base", "1e400d")])
def test_times_of_a_step_have_a_range(key: str, value: str) -> None:
    with pytest.raises(InputError, match=rf"cost_model\.{key}: "):
        run(SCENARIO, {f"deployment.pools.m.cost_model.{key}": value})
