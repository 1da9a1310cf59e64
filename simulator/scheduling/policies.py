"""The built-in batch policies, by the name that a scenario gives them."""

from __future__ import annotations

from collections.abc import Callable

from simulator.scenario import schema
from simulator.scheduling.plan import Policy
from simulator.scheduling.vllm import VllmPolicy

POLICIES: dict[str, Callable[[schema.Scheduler, int], Policy]] = {"vllm": VllmPolicy}


def build_policy(settings: schema.Scheduler, kv_blocks: int) -> Policy:
    """The policy that the scenario names, for a replica with `kv_blocks` usable KV blocks."""
    return POLICIES[settings.TAG](settings, kv_blocks)


def needs_exact(settings: schema.Scheduler) -> str | None:
    """The setting, as `key: value`, for which the policy must look at each sequence in each step; None if there is
    none, so that `build_policy` gives the same steps."""
    asked = {
        "scheduling_policy: priority": settings.scheduling_policy == "priority",
        f"prefill_schedule_interval: {settings.prefill_schedule_interval}": settings.prefill_schedule_interval > 1,
        "pool_overflow: wait": settings.pool_overflow == "wait",
        "context_overflow: cut": settings.context_overflow == "cut",
        "preemption_victim: least_computed": settings.preemption_victim == "least_computed",
        f"max_num_partial_prefills: {settings.max_num_partial_prefills}": settings.max_num_partial_prefills,
    }
    return next((name for name, value in asked.items() if value), None)
