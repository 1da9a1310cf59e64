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
