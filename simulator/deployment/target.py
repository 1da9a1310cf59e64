"""The model of a pool and its GPUs, from which the pool's numbers are computed."""

from __future__ import annotations

from typing import NamedTuple

from cost_models import GpuSpec, ModelSpec, Placement, StepLimits
from simulator.scenario.schema import ModelRef, Pool
from simulator.scheduling import limits


class Target(NamedTuple):
    """A pool with its model, which is `model_ref` in the scenario, and its GPU; `path` is that of the pool's keys."""

    path: str
    pool: Pool
    model_ref: ModelRef
    model: ModelSpec
    gpu: GpuSpec

    @property
    def placement(self) -> Placement:
        """The GPUs of a replica."""
        pool, model_ref = self.pool, self.model_ref
        parallel = (pool.tensor_parallel, pool.pipeline_parallel, pool.data_parallel, pool.expert_parallel)
        return Placement(*parallel, model_ref.weights, model_ref.kv_cache)

    @property
    def step_limits(self) -> StepLimits:
        """The largest step of the scheduler."""
        return step_limits(self.pool)


def step_limits(pool: Pool) -> StepLimits:
    """Return the largest step of a pool's scheduler."""
    scheduler = limits(pool.scheduler)
    return StepLimits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
