"""The parts of a replica, or of a rank of it: its batch, its policy and its blocks.

There are three families, each batch with the policies that know its view: the lazy ones and the plain one, the lazy one
with speculation, and the exact one, whose scheduler looks at each sequence in each step (see `scheduling.exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator.engine.batches.draft_counts import DraftCounts
from simulator.engine.batches.drafting import Drafting
from simulator.engine.batches.exact import ExactBatch
from simulator.engine.batches.lazy import LazyBatch
from simulator.engine.batches.lazy_speculation import SpeculatingBatch
from simulator.engine.batches.plain import PlainBatch
from simulator.engine.logs.request_log import RequestLog
from simulator.engine.service import Service
from simulator.memory import NO_DRAFTS, BlockPool, OffloadTier, build_offloading_pool, build_pool
from simulator.scenario.schedulers import VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scheduling import ExactVllmPolicy, Speculation, VllmPolicy, build_policy, limits, needs_exact
from simulator.workload.requests import RequestTable


class Parts(NamedTuple):
    """`counts` is None without speculation."""

    batch: Any  # a `Batch`; policies of a family take its own view of it
    policy: Any
    blocks: BlockPool
    counts: DraftCounts | None = None


def speculation_of(pool: Pool) -> Speculation | None:
    """The speculation of a pool as its scheduler sees it."""
    settings = pool.speculation
    if settings is None:
        return None
    assert isinstance(pool.scheduler, VllmScheduler)
    return Speculation(settings.TAG, settings.num_speculative_tokens, pool.scheduler.lookahead_hashing is True)


def needs_exact_for(pool: Pool, service: Service, table: RequestTable) -> str | None:
    """What of a pool's settings, as `key: value`, or of the requests asks for the exact parts; None if nothing does.

    Near the context limit drafts are cut; asynchronously, where a step is formed as if all drafts under way would hold,
    earlier, and steps are left out.
    """
    why, speculation = needs_exact(pool), speculation_of(pool)
    if why is not None or speculation is None:
        return why
    longest, drafts = service.max_model_len, speculation.k
    beyond = 2 * (drafts + 1) if limits(pool.scheduler).async_scheduling else drafts
    prompts = table.prompt_tokens.astype(np.int64)
    if ((prompts + table.max_tokens <= longest) & (prompts + table.output_tokens + beyond > longest)).any():
        return f"scheduler.max_model_len: {longest} with requests as long, and speculation"
    return None


def exact_parts(
    number: int,
    pool: Pool,
    service: Service,
    log: RequestLog,
    outputs: Sequence[int],
    passes: Callable[[], int] | None = None,
) -> Parts:
    """Those of rank `number`, whose scheduler is vLLM's, with every setting; `passes` as in `ExactVllmPolicy`."""
    scheduler = pool.scheduler
    assert isinstance(scheduler, VllmScheduler)
    blocks = _blocks(pool, service, private=False)
    batch = ExactBatch(
        number,
        blocks,
        log,
        outputs,
        2 if scheduler.async_scheduling else 1,
        service.cost.window,
        by_priority=scheduler.scheduling_policy == "priority",
        preempted_first=scheduler.preempted_first,
        detect_livelock=True,
    )
    policy = ExactVllmPolicy(scheduler, service.kv_blocks, service.max_model_len, speculation_of(pool), passes)
    if pool.speculation is None:
        return Parts(batch, policy, blocks)
    assert service.acceptance is not None
    counts = DraftCounts(pool.speculation)
    batch.speculate(Drafting(pool.speculation, service.acceptance, counts, service.cost, batch))
    return Parts(batch, policy, blocks, counts)


def fast_parts(
    number: int, pool: Pool, service: Service, log: RequestLog, outputs: Sequence[int], plain: bool
) -> Parts:
    """Those of rank `number` where nothing asks for the exact ones; `plain` takes the oracle of the lazy batch."""
    blocks, asked, window = _blocks(pool, service, private=True), limits(pool.scheduler), service.cost.window
    speculation, depth = speculation_of(pool), 2 if asked.async_scheduling else 1
    if speculation is None:
        kind = PlainBatch if plain else LazyBatch
        batch = kind(number, blocks, log, outputs, depth, window, asked.requeue)
        return Parts(batch, build_policy(pool.scheduler, service.kv_blocks), blocks)
    assert pool.speculation is not None and service.acceptance is not None
    assert isinstance(pool.scheduler, VllmScheduler)
    counts, longest = DraftCounts(pool.speculation), service.max_model_len
    drawn = SpeculatingBatch(
        number, blocks, log, outputs, depth, window, speculation, service.acceptance, counts, longest
    )
    return Parts(drawn, VllmPolicy(pool.scheduler, service.kv_blocks, speculation, longest), blocks, counts)


def _blocks(pool: Pool, service: Service, private: bool) -> BlockPool:
    """The blocks of a replica; `private` as in `build_pool`."""
    asked, memory, offload = limits(pool.scheduler), pool.memory, pool.memory.offload
    speculation = speculation_of(pool)
    drafts = NO_DRAFTS if speculation is None else speculation.asks(asked.async_scheduling)
    if offload is None:
        longest = service.max_model_len
        return build_pool(asked, service.kv_blocks, memory.block_size, private, memory.allocation, longest, drafts)
    blocks = offload.capacity // (service.kv_token_bytes * memory.block_size)
    tier = OffloadTier(blocks, offload.write == "write_through")
    return build_offloading_pool(asked, service.kv_blocks, memory.block_size, tier, private, drafts)
