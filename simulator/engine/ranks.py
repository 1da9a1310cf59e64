"""What ties the ranks of a replica together: the stages of a pipeline, or a barrier."""

from __future__ import annotations

from typing import cast

from cost_models.shape import CostModel, LockstepCost, StagedCost
from simulator.engine.barrier import Barrier
from simulator.engine.clock import Clock
from simulator.engine.device import Pipeline
from simulator.scenario.schema import Pool
from simulator.scheduling import limits

Tie = Pipeline | Barrier | None


def ties(pool: Pool, cost: CostModel, lockstep: bool, clock: Clock) -> list[Tie]:
    """For each rank of the pool: the pipeline of which it is a lane, the barrier at which it meets others, or None.

    Replica after replica, within it one data-parallel rank after the other, within that its lanes. With `lockstep` the
    data-parallel ranks of a replica meet; else they have nothing in common.
    """
    found: list[Tie] = []
    if pool.pipeline_parallel > 1:
        while len(found) < pool.ranks:
            found += [Pipeline(cast("StagedCost", cost))] * pool.pipeline_parallel
        return found
    if not lockstep:
        return [None] * pool.ranks
    depth = 2 if limits(pool.scheduler).async_scheduling else 1
    while len(found) < pool.ranks:
        found += [Barrier(clock, cast("LockstepCost", cost), depth)] * pool.data_parallel
    return found
