"""The built-in batch policies, by the name that a scenario gives them, and what the rest of the house asks of each."""

from __future__ import annotations

from typing import Any

from simulator.scenario.schedulers import Scheduler, VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scheduling.distserve import DistServePolicy
from simulator.scheduling.limits import Limits
from simulator.scheduling.orca import OrcaPolicy
from simulator.scheduling.plan import Policy
from simulator.scheduling.prefill_first import PrefillFirstPolicy
from simulator.scheduling.sarathi import SarathiPolicy
from simulator.scheduling.sglang import SglangPolicy
from simulator.scheduling.speculation import Speculation
from simulator.scheduling.static import StaticPolicy
from simulator.scheduling.tensorrt_llm import TensorRtLlmPolicy
from simulator.scheduling.vllm import VllmPolicy

#: A policy is made of its settings and the usable KV blocks of its replica; its `limits` need the settings alone.
POLICIES: dict[str, Any] = {
    "vllm": VllmPolicy,
    "sglang": SglangPolicy,
    "tensorrt_llm": TensorRtLlmPolicy,
    "static": StaticPolicy,
    "orca": OrcaPolicy,
    "prefill_first": PrefillFirstPolicy,
    "sarathi": SarathiPolicy,
    "distserve": DistServePolicy,
}


def build_policy(settings: Scheduler, kv_blocks: int) -> Policy:
    """The policy that the scenario names, for a replica with `kv_blocks` usable KV blocks."""
    policy: Policy = POLICIES[settings.TAG](settings, kv_blocks)
    return policy


def limits(settings: Scheduler) -> Limits:
    """What memory, engine and study need to know of the settings, whichever policy they are of."""
    answer: Limits = POLICIES[settings.TAG].limits(settings)
    return answer


def needs_exact(pool: Pool) -> str | None:
    """The setting of a pool, as `key: value`, for which the policy must look at each sequence in each step; None if
    there is none, so that `build_policy` gives the same steps."""
    settings = pool.scheduler
    if not isinstance(settings, VllmScheduler):
        return None
    asked = {
        "scheduling_policy: priority": settings.scheduling_policy == "priority",
        f"prefill_schedule_interval: {settings.prefill_schedule_interval}": settings.prefill_schedule_interval > 1,
        "pool_overflow: wait": settings.pool_overflow == "wait",
        "context_overflow: cut": settings.context_overflow == "cut",
        "preemption_victim: least_computed": settings.preemption_victim == "least_computed",
        f"max_num_partial_prefills: {settings.max_num_partial_prefills}": settings.max_num_partial_prefills,
    }
    found = next((f"scheduler.{name}" for name, value in asked.items() if value), None)
    if found is None and pool.role == "decode" and settings.enable_prefix_caching and pool.memory.block_size == 1:
        # The block of the token that a joining sequence computes first is content that others may look for at once.
        found = "memory.block_size: 1 with role: decode and scheduler.enable_prefix_caching"
    return found if found or pool.speculation is None else _speculation_needs_exact(pool, settings)


def _speculation_needs_exact(pool: Pool, settings: VllmScheduler) -> str | None:
    """The same for a pool that speculates: what makes drafts differ from step to step, or from sequence to sequence.

    Its decodes' drafts must fit the budget of a step, and its prefills stand behind all decodes.
    """
    speculation = pool.speculation
    assert speculation is not None
    drafts, sizes = Speculation(speculation.TAG, speculation.num_speculative_tokens), limits(settings)
    tokens = sizes.max_num_seqs * drafts.step_tokens
    budget, threshold = sizes.max_num_batched_tokens, settings.long_prefill_token_threshold
    asked = {
        f"speculation.length.rule: {speculation.length.TAG}": speculation.length.TAG != "fixed",
        "speculation.disable_by_batch_size": speculation.disable_by_batch_size is not None,
        "memory.offload with speculation": pool.memory.offload is not None,
        "role: decode with speculation and scheduler.enable_prefix_caching": (
            pool.role == "decode" and settings.enable_prefix_caching
        ),
        f"memory.allocation: {pool.memory.allocation} with speculation": pool.memory.allocation != "paged",
        f"scheduler.long_prefill_token_threshold: {threshold} with speculation": threshold,
        "scheduler.long_prefill_token_threshold_adaptive with speculation": (
            settings.long_prefill_token_threshold_adaptive
        ),
        f"scheduler.max_num_batched_tokens: {budget} with {tokens} tokens of decodes and drafts": tokens > budget,
    }
    return next((name for name, value in asked.items() if value), None)
