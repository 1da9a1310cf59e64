"""The parts of a replica whose scheduler looks at each sequence in each step; see `scheduling.exact`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.engine.exact import ExactBatch, Log
from simulator.memory import BlockPool, OffloadTier, build_offloading_pool, build_pool
from simulator.scenario.schedulers import VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scheduling import ExactVllmPolicy, Speculation, limits


def exact_parts(
    number: int,
    pool: Pool,
    kv_blocks: int,
    max_model_len: int,
    log: Log,
    outputs: Sequence[int],
    window: int,
    passes: Callable[[], int] | None = None,
    tier: OffloadTier | None = None,
) -> tuple[ExactBatch, ExactVllmPolicy, BlockPool]:
    """The batch, the policy and the blocks of rank `number`, whose scheduler is vLLM's; `passes` as in
    `ExactVllmPolicy`, and `tier` is its CPU memory."""
    scheduler = pool.scheduler
    assert isinstance(scheduler, VllmScheduler)
    asked, memory = limits(scheduler), pool.memory
    blocks: BlockPool
    if tier is None:
        blocks = build_pool(asked, kv_blocks, memory.block_size, False, memory.allocation, max_model_len)
    else:
        blocks = build_offloading_pool(asked, kv_blocks, memory.block_size, tier)
    batch = ExactBatch(
        number,
        blocks,
        log,
        outputs,
        2 if scheduler.async_scheduling else 1,
        window,
        by_priority=scheduler.scheduling_policy == "priority",
        preempted_first=scheduler.preempted_first,
        detect_livelock=True,
    )
    return batch, ExactVllmPolicy(scheduler, kv_blocks, max_model_len, speculation_of(pool), passes), blocks


def speculation_of(pool: Pool) -> Speculation | None:
    """The speculation of a pool as its scheduler sees it."""
    settings = pool.speculation
    return None if settings is None else Speculation(settings.TAG, settings.num_speculative_tokens)
