"""Preparation of a run: requests and resolved deployment of a scenario, checked before the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Imported first: deep in the imports below, calls in numpy's modules would map and unmap a chunk of the interpreter's
# stack 1,170 times in CPython 3.11, which takes 8 ms.
import numpy  # noqa: F401

from simulator.common.shipped import file_finder
from simulator.deployment.pricing import usd_per_hour
from simulator.deployment.resolve import Resolved, resolve
from simulator.deployment.windows import window_notes
from simulator.errors import InputError
from simulator.scenario import Scenario
from simulator.scenario.handover import Handover
from simulator.scheduling import Limits, limits
from simulator.workload import RequestTable, load_requests
from simulator.workload.selection import cut_at_context


class Prepared(NamedTuple):
    """A scenario with its requests and its resolved deployment, checked and ready to be simulated.

    `scenario` has the defaults of the engine's version and the tables of acceptance filled in.
    """

    scenario: Scenario
    table: RequestTable
    resolved: Resolved


def prepare(scenario: Scenario) -> Prepared:
    """Resolve the deployment, and read or draw the requests.

    Raises:
        InputError: the scenario, its model, its GPU or its trace has a mistake in it.
    """
    speculates = any(pool.speculation is not None for pool in scenario.deployment.pools.values())
    if speculates:
        from simulator.deployment.acceptance import with_acceptance, with_tables_named

        scenario = with_tables_named(scenario)
    resolved = resolve(scenario)
    scenario = resolved.settle(scenario)
    usd_per_hour(resolved, scenario.cost)  # fails for a GPU without a price
    schedulers = [pool.scheduler for pool in scenario.deployment.pools.values()]
    limits_of_pools = [limits(scheduler) for scheduler in schedulers]
    find = file_finder(None if scenario.origin is None else scenario.origin.path)
    table = load_requests(scenario.workload, scenario.seed, find, _columns_used(limits_of_pools))
    if any(limit.context_overflow == "cut" for limit in limits_of_pools):
        table = cut_at_context(table, resolved.max_model_len)
    if scenario.run.jobs != 1:
        _check_independent(scenario, table)
    if scenario.run.engine == "lazy":
        _check_lazy(resolved, table, scenario.deployment.handover)
    resolved = resolved._replace(notes=(*resolved.notes, *window_notes(resolved, table)))
    if speculates:
        resolved = with_acceptance(resolved, scenario, table, find)
    return Prepared(scenario, table, resolved)


def _check_independent(scenario: Scenario, table: RequestTable) -> None:
    from simulator.engine.shares import dependence

    why = dependence(scenario, table)
    if why is not None:
        raise InputError(f"run.jobs: {scenario.run.jobs} needs replicas that do not depend on each other; {why}")


def _check_lazy(resolved: Resolved, table: RequestTable, handover: Handover | None) -> None:
    from simulator.engine.batches.build import needs_explicit_for

    for pool in resolved.pools:
        why = needs_explicit_for(pool.settings, pool.service, table, handover)
        if why is not None:
            raise InputError(f"run.engine: lazy does not support {why}; leave run.engine out")


def _columns_used(limits_of_pools: Sequence[Limits]) -> frozenset[str]:
    """Return the optional columns of a workload that any scheduler uses."""
    used = {
        "prefix_id": any(limit.prefix_caching for limit in limits_of_pools),
        "priority": any(limit.by_priority for limit in limits_of_pools),
    }
    return frozenset(name for name, is_used in used.items() if is_used)
