"""What becomes of the drafts of a scenario's requests: found before the run, so that a bad table is found in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from simulator.scenario import Scenario
from simulator.speculation import build_acceptance
from simulator.study.deployment import Resolved, ResolvedPool
from simulator.workload import RequestTable


def with_acceptance(
    resolved: Resolved, scenario: Scenario, table: RequestTable, find: Callable[[str], Path]
) -> Resolved:
    """`resolved`, with the acceptance law for the requests of `table` in each pool that speculates.

    `find` looks recorded counts up by name. Raises InputError for a law that does not suit the requests or proposer.
    """

    def completed(pool: ResolvedPool) -> ResolvedPool:
        proposer = pool.settings.speculation
        if proposer is None:
            return pool
        path = f"deployment.pools.{pool.name}.speculation"
        law = build_acceptance(proposer, pool.model.name, scenario.seed, table.class_names, table.class_id, find, path)
        return replace(pool, service=replace(pool.service, acceptance=law))

    return replace(resolved, pools=tuple(completed(pool) for pool in resolved.pools))
