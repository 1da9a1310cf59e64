"""Whole runs by policy: valid settings of a scenario, and errors for others."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import InputError
from simulator.scenario.reader import tags
from simulator.scenario.schedulers import DistServeScheduler, Scheduler, StaticScheduler
from simulator.scenario.schema import Pool
from simulator.study.prepare import prepare
from tests.helpers import run, scenario

WORKLOAD = {"arrivals": {"process": "poisson", "rate": 20}, "requests": 60, "prompt_tokens": 200, "output_tokens": 20}
LAW = {"base": "5ms", "per_token": "20us"}


@pytest.mark.parametrize("policy", [policy for policy in tags(Scheduler) if policy != "distserve"])
def test_every_policy_serves_everything(policy: str) -> None:
    options = {"checks": True}
    finished = run(scenario(WORKLOAD, LAW, scheduler={"policy": policy}, run=options))
    assert finished.summary["requests"]["completed"] == 60
    caching = "prefix_cache" in finished.summary  # then blocks are shared, and no share of them is wasted
    assert caching or finished.summary["kv"]["wasted_share"] > 0


def test_a_stall_by_prompts_is_a_gap_that_the_summary_shows() -> None:
    """Prompts of 2,000 tokens take 45 ms: alone they add to a decode's step, in chunks of 256 they hardly do."""
    long_prompts = WORKLOAD | {"prompt_tokens": 2000}
    gaps = {}
    for policy, budget in (("prefill_first", 2100), ("sarathi", 256)):
        asked = {"policy": policy, "max_num_batched_tokens": budget, "max_model_len": 2100}
        gaps[policy] = run(scenario(long_prompts, LAW, scheduler=asked)).summary["latency"]["itl_ms"]["max"]
    assert gaps["prefill_first"] > 45 + 5
    assert gaps["sarathi"] <= 5 + 0.02 * 256 + 1e-6


@pytest.mark.parametrize(
    ("scheduler", "memory", "text"),
    [
        (
            {"policy": "orca", "max_num_batched_tokens": 100},
            {},
            "without chunked prefill a prompt is",
        ),
        ({"policy": "sarathi", "chunked": False, "max_num_batched_tokens": 100}, {}, "without chunked prefill"),
        (
            {"enable_prefix_caching": True},
            {"allocation": "contiguous"},
            "prefix caching shares blocks",
        ),
    ],
)
def test_settings_that_cannot_go_together(scheduler: dict[str, Any], memory: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        prepare(scenario(WORKLOAD, LAW, scheduler=scheduler, memory=memory))


@pytest.mark.parametrize(
    ("role", "scheduler", "text"),
    [
        ("both", DistServeScheduler(), "policy distserve is for instances that prefill or decode"),
        ("decode", StaticScheduler(), "policy static forms batches once"),
    ],
)
def test_policies_that_a_role_excludes(role: Any, scheduler: Scheduler, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Pool("h100-sxm", role, scheduler=scheduler)


def test_keys_of_another_policy_are_unknown() -> None:
    with pytest.raises(InputError, match=r"scheduler.watermark: unknown key"):
        scenario(WORKLOAD, LAW, scheduler={"policy": "orca", "watermark": 0.1})
