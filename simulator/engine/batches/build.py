"""Construction of the scheduler of an engine core: batch, policy and block pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simulator.engine.batches.interface import BatchContext, TokenLog
from simulator.engine.batches.lazy import LazyBatch
from simulator.engine.service import Service
from simulator.memory import NO_DRAFTS, BlockPool, OffloadTier, PoolLayout, build_offloading_pool, build_pool
from simulator.scenario.handover import Handover
from simulator.scenario.schema import Pool
from simulator.scheduling import PolicySetup, build_policy, limits, needs_explicit, speculation_of
from simulator.workload.requests import RequestTable

if TYPE_CHECKING:
    from simulator.engine.batches.draft_counts import DraftCounts
    from simulator.engine.batches.draft_courses import CourseMaker
    from simulator.engine.batches.explicit import ExplicitBatch
    from simulator.scenario.speculation import Proposer
    from simulator.scheduling import Speculation
    from simulator.speculation import AcceptanceLaw


class Scheduler(NamedTuple):
    """A policy and its batch; `counts` is None without speculation."""

    batch: Any  # a `Batch`, which is also the view of its policy
    policy: Any
    counts: DraftCounts | None = None


def needs_explicit_for(pool: Pool, service: Service, table: RequestTable, handover: Handover | None) -> str | None:
    """Return the setting, as `key: value`, or the requests that only the explicit batch supports; None if there are
    none.

    Near the context limit drafts are truncated. With asynchronous scheduling this begins earlier, since a step is
    formed as if all drafts in flight were accepted, and steps are left out. A first token that is delivered without a
    step needs a row of its own, which the lazy batch of speculation does not support.
    """
    why, speculation = needs_explicit(pool), speculation_of(pool)
    if why is not None or speculation is None:
        return why
    if pool.role == "decode" and handover is not None and handover.first_token == "transfer":
        return "deployment.handover.first_token: transfer with speculation"
    longest, drafts = service.max_model_len, speculation.k
    beyond = 2 * (drafts + 1) if limits(pool.scheduler).async_scheduling else drafts
    prompts = table.prompt_tokens.astype(np.int64)
    if ((prompts + table.max_tokens <= longest) & (prompts + table.output_tokens + beyond > longest)).any():
        return f"scheduler.max_model_len: {longest} with requests as long, and speculation"
    return None


class SchedulerFactory:
    """Builds the schedulers of a pool's engine cores, with the lazy batch or the explicit one."""

    def __init__(self, pool: Pool, service: Service, log: TokenLog, table: RequestTable, explicit: bool) -> None:
        self._pool, self._service, self._log, self._table = pool, service, log, table
        self._outputs = np.ascontiguousarray(table.output_tokens, np.int64).data
        self._explicit = explicit
        self._courses: CourseMaker | None = None  # of all cores, once there is one
        self._asked, self._speculation = limits(pool.scheduler), speculation_of(pool)

    def build(self, number: int, passes: Callable[[], int] | None = None) -> Scheduler:
        """Build the scheduler of engine core `number`; `passes` as in `PolicySetup`."""
        pool, service = self._pool, self._service
        setup = PolicySetup(pool.scheduler, service.kv_blocks, service.max_model_len, self._speculation, passes)
        policy, context = build_policy(setup, self._explicit), self._context(number)
        if pool.speculation is not None:
            return self._speculating(pool.speculation, context, policy)
        return Scheduler(self._explicit_batch(context) if self._explicit else LazyBatch(context), policy)

    def _explicit_batch(self, context: BatchContext) -> ExplicitBatch:
        from simulator.engine.batches.explicit import ExplicitBatch

        return ExplicitBatch(context)

    def _speculating(self, settings: Proposer, context: BatchContext, policy: Any) -> Scheduler:
        """Build the batch of a pool that speculates, and the counts of its drafts."""
        from simulator.engine.batches.draft_counts import DraftCounts
        from simulator.engine.batches.drafting import Drafting
        from simulator.engine.batches.lazy_speculation import SpeculatingBatch

        service, speculation, counts = self._service, self._speculation, DraftCounts(settings)
        assert service.acceptance is not None and speculation is not None
        if self._explicit:
            batch = self._explicit_batch(context)
            batch.speculate(Drafting(settings, service.acceptance, counts, service.cost, batch))
            return Scheduler(batch, policy, counts)
        if self._courses is None:
            self._courses = self._course_maker(speculation, service.acceptance)
        return Scheduler(SpeculatingBatch(context, self._courses, counts), policy, counts)

    def _course_maker(self, speculation: Speculation, law: AcceptanceLaw) -> CourseMaker:
        from simulator.engine.batches.draft_course import CourseRules
        from simulator.engine.batches.draft_courses import CourseMaker

        service, size = self._service, self._pool.memory.block_size
        rules = CourseRules(speculation, self._asked.async_scheduling, size, service.cost.window, service.max_model_len)
        return CourseMaker(law, rules, self._table)

    def _context(self, number: int) -> BatchContext:
        return BatchContext(
            number,
            self._blocks(),
            self._log,
            self._outputs,
            depth=2 if self._asked.async_scheduling else 1,
            window=self._service.cost.window,
            requeue=self._asked.requeue,
            keeps=self._pool.role == "prefill",
            detect_livelock=True,
            max_model_len=self._service.max_model_len,
        )

    def _blocks(self) -> BlockPool:
        """Build the block pool of an engine core; lazy batches use private blocks (`PrefixPool`)."""
        service, memory, private = self._service, self._pool.memory, not self._explicit
        drafts = NO_DRAFTS if self._speculation is None else self._speculation.asks(self._asked.async_scheduling)
        layout = PoolLayout(
            service.kv_blocks, memory.block_size, memory.allocation, service.max_model_len, private, drafts
        )
        if memory.offload is None:
            return build_pool(self._asked, layout)
        blocks = memory.offload.capacity // (service.kv_token_bytes * memory.block_size)
        return build_offloading_pool(self._asked, layout, OffloadTier(blocks, memory.offload.write == "write_through"))
