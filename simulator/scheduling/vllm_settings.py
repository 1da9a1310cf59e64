"""Settings of vLLM's scheduler: its limits, and the settings that need the explicit policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.scenario.schedulers import VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scheduling.limits import Limits, Requeue
from simulator.scheduling.sequence import RankedSequence, SequenceState
from simulator.scheduling.speculation import Speculation

#: Bytes of a logit in the sampling of the profile run at start, by version. 0.10 sorts logits in FP32 (values, 64-bit
#: indices, probabilities, sums, masks): its logs show 7.5 GiB beside weights and KV of gpt-oss-120b at 1,024 sequences
#: (vllm#23278, #27508). Later versions show less: 1.2 GiB beside those of gpt-oss-20b at 256 (0.19).
_LOGIT_BYTES = {"vllm-0.10": 36}


def vllm_limits(settings: VllmScheduler) -> Limits:
    """Return the limits of vLLM's settings, in which the engine's defaults are filled in."""
    seqs, tokens, ahead = settings.max_num_seqs, settings.max_num_batched_tokens, settings.async_scheduling
    if seqs is None or tokens is None or ahead is None or settings.enable_prefix_caching is None:
        raise AssertionError("with_engine_defaults has not filled in the settings of the scheduler")
    by_priority = settings.scheduling_policy == "priority"
    requeue: Requeue = "front"
    if by_priority:
        requeue = "preempted_first" if settings.preempted_first else "priority"
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=settings.max_model_len,
        chunked=settings.enable_chunked_prefill,
        prefix_caching=settings.enable_prefix_caching,
        free_list=settings.free_list or "unhashed_first",
        async_scheduling=ahead,
        context_overflow=settings.context_overflow,
        pool_overflow=settings.pool_overflow,
        by_priority=by_priority,
        requeue=requeue,
        checks_context=True,
        logit_bytes=_LOGIT_BYTES.get(settings.version),
        max_num_active_seqs=settings.max_num_active_seqs,
        decodes_count=True,
        watermark=settings.watermark,
        lookahead_hashing=settings.lookahead_hashing is True,
        own_blocks=1,  # vLLM's watermark is a share of all blocks, including its reserved block 0
    )


def victim_rule(settings: VllmScheduler) -> Callable[[Sequence[Any]], int]:
    """Return the function that returns the place of the sequence to preempt in a running list in order of admission."""
    if settings.scheduling_policy == "priority":
        return _least_urgent
    return _least_computed if settings.preemption_victim == "least_computed" else _last


def _last(order: Sequence[Any]) -> int:
    return len(order) - 1


def _least_urgent(order: Sequence[RankedSequence]) -> int:
    """Return the place of the lowest priority, of these the latest arrival, of these the first."""
    return max(range(len(order)), key=lambda at: (order[at].priority, order[at].arrival_ns))


def _least_computed(order: Sequence[SequenceState]) -> int:
    """Return the place of the fewest computed tokens, of these the last."""
    return min(range(len(order)), key=lambda at: (order[at].computed, -at))


def needs_explicit(pool: Pool) -> str | None:
    """Return the setting of a pool, as `key: value`, that needs `ExplicitVllmPolicy`; None if `VllmPolicy` suffices."""
    settings = pool.scheduler
    assert isinstance(settings, VllmScheduler)
    interval, found = settings.prefill_schedule_interval, None
    if interval > 1:
        found = f"scheduler.prefill_schedule_interval: {interval}"
    elif pool.role == "decode" and settings.enable_prefix_caching and pool.memory.block_size == 1:
        # A joining sequence fills a block with its first token, which other sequences may look up in the same step.
        found = "memory.block_size: 1 with role: decode and scheduler.enable_prefix_caching"
    return found if found or pool.speculation is None else _speculation_needs_explicit(pool, settings)


def _speculation_needs_explicit(pool: Pool, settings: VllmScheduler) -> str | None:
    """Return the same for a pool that speculates.

    `VllmPolicy` needs an equal number of drafts in all steps and sequences, a budget that suffices for the drafts of
    all decodes, and prefills behind all decodes.
    """
    speculation = pool.speculation
    assert speculation is not None
    drafts, sizes = Speculation(speculation.TAG, speculation.num_speculative_tokens), vllm_limits(settings)
    tokens = sizes.max_num_seqs * drafts.step_tokens
    budget, threshold = sizes.max_num_batched_tokens, settings.long_prefill_token_threshold
    asked = {
        "scheduler.scheduling_policy: priority with speculation": settings.scheduling_policy == "priority",
        "scheduler.preemption_victim: least_computed with speculation": settings.preemption_victim == "least_computed",
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
