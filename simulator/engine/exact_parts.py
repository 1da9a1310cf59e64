"""The parts of a replica whose scheduler looks at each sequence in each step; see `scheduling.exact`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.engine.exact import ExactBatch, Log
from simulator.engine.log import RequestLog
from simulator.memory import BlockPool, build_pool, text_keys
from simulator.scenario.schema import Pool
from simulator.scheduling import ExactVllmPolicy, TrackedSequence
from simulator.workload.requests import RequestTable


def exact_parts(
    number: int, pool: Pool, kv_blocks: int, max_model_len: int, log: Log, outputs: Sequence[int], window: int
) -> tuple[ExactBatch, ExactVllmPolicy, BlockPool]:
    """The batch, the policy and the blocks of replica `number`."""
    scheduler = pool.scheduler
    blocks = build_pool(scheduler, kv_blocks, pool.memory.block_size)
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
    return batch, ExactVllmPolicy(scheduler, kv_blocks, max_model_len), blocks


def sequence_maker(table: RequestTable, log: RequestLog, block_size: int) -> Callable[[int], TrackedSequence]:
    """Makes the sequence of a request that has just arrived, with its priority and what its prompt shares."""
    prompts, limits, prefixes, prefix_tokens, pool_prompts = (
        np.ascontiguousarray(column, np.int64).data
        for column in (table.prompt_tokens, table.max_tokens, table.prefix_id, table.prefix_tokens, table.prompt_id)
    )
    priorities = table.extras.get("priority")

    def make(index: int) -> TrackedSequence:
        prompt = prompts[index]
        texts = []  # a prefix has an even number, a whole prompt an odd one
        if prefixes[index] >= 0 and prefix_tokens[index]:
            texts.append((2 * prefixes[index], prefix_tokens[index]))
        if pool_prompts[index] >= 0:
            texts.append((2 * pool_prompts[index] + 1, prompt))
        priority = 0 if priorities is None else int(priorities[index])
        shared = text_keys(texts, prompt, block_size) if texts else ()
        return TrackedSequence(index, prompt, limits[index], priority, log.arrival_ns[index], shared)

    return make
