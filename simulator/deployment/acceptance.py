"""The acceptance laws of a scenario's pools, built before the run so that a bad table is an error at the start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.common.notes import Note
from simulator.deployment.resolve import Resolved
from simulator.scenario import Scenario
from simulator.scenario.acceptance import ByClassAcceptance, MixtureAcceptance, ReplayAcceptance, TableAcceptance
from simulator.scenario.schema import Pool
from simulator.scenario.speculation import Medusa, Ngram, Proposer
from simulator.scheduling import limits, schedules_ahead
from simulator.speculation import Origin, RequestClasses, build_acceptance
from simulator.speculation.acceptance import method_of, tables_of
from simulator.speculation.tables import default_table
from simulator.workload import RequestTable


def with_tables_named(scenario: Scenario) -> Scenario:
    """Return `scenario` with the default table's name wherever an acceptance uses one, so that results show it.

    Where there is no default, nothing changes; `with_acceptance` then raises an error.
    """
    pools = {name: _with_table(pool, scenario) for name, pool in scenario.deployment.pools.items()}
    return replace(scenario, deployment=replace(scenario.deployment, pools=pools))


def _with_table(pool: Pool, scenario: Scenario) -> Pool:
    proposer = pool.speculation
    if proposer is None:
        return pool
    default = default_table(method_of(proposer), (pool.model or scenario.model).name)
    if default is None:
        return pool
    return replace(pool, speculation=replace(proposer, acceptance=_with_default(proposer.acceptance, default.name)))


def _with_default(law: Any, table: str) -> Any:
    """Return an acceptance law, or a part of one, with `table` wherever it needs a table and names none."""
    if isinstance(law, TableAcceptance):
        return law if law.table or law.cumulative or law.conditional else replace(law, table=table)
    if isinstance(law, MixtureAcceptance):
        parts = tuple(replace(part, acceptance=_with_default(part.acceptance, table)) for part in law.parts)
        return replace(law, parts=parts)
    if isinstance(law, ByClassAcceptance):
        classes = {name: _with_default(own, table) for name, own in law.classes.items()}
        return replace(law, classes=classes, others=_with_default(law.others, table))
    return law


def draws_acceptance(scenario: Scenario) -> bool:
    """Return whether the acceptance of drafts is drawn at random, so that it depends on the seed: in any pool that
    speculates, unless accepted drafts are replayed."""
    proposers = [pool.speculation for pool in scenario.deployment.pools.values()]
    return any(each is not None and not isinstance(each.acceptance, ReplayAcceptance) for each in proposers)


def with_acceptance(
    resolved: Resolved, scenario: Scenario, table: RequestTable, find: Callable[[str], Path]
) -> Resolved:
    """Return `resolved` with the acceptance law for the requests of `table` in each pool that speculates.

    `find` returns the path of a file of recorded counts, by its name. Raises InputError for a law that does not suit
    the requests or the proposer.
    """

    pools, notes = [], list(resolved.notes)
    for pool in resolved.pools:
        proposer = pool.settings.speculation
        if proposer is not None:
            path, model = f"deployment.pools.{pool.name}.speculation", pool.model.name
            classes = RequestClasses(table.class_names, table.class_id)
            law = build_acceptance(proposer, model, scenario.seed, classes, Origin(path, find))
            pool = pool._replace(service=pool.service._replace(acceptance=law))
            notes += [*_acceptance_notes(proposer, model, path), *_scheduling_notes(pool.settings, proposer)]
        pools.append(pool)
    return resolved._replace(pools=tuple(pools), notes=tuple(notes))


def _scheduling_notes(pool: Pool, proposer: Proposer) -> list[Note]:
    """Return a note if vLLM cannot schedule these drafts asynchronously: those made on the CPU (`VllmConfig`)."""
    if not isinstance(proposer, Ngram | Medusa):
        return []
    method, version = method_of(proposer), getattr(pool.scheduler, "version", "")
    if limits(pool.scheduler).async_scheduling:
        text = f"vLLM refuses asynchronous scheduling with drafts of {method}; it is simulated as the scenario asks"
    elif schedules_ahead(version):
        text = f"scheduling is synchronous, as in vLLM with drafts of {method}, though {version} is not"
    else:
        return []
    return [Note("synchronous_drafts", text)]


def _acceptance_notes(proposer: Proposer, model: str, path: str) -> list[Note]:
    """Return notes on acceptance that was measured with another model, method or rule than the simulated one."""
    notes = []
    for table in tables_of(proposer, model, f"{path}.acceptance"):
        of = f"{table.method} on {table.model} ({table.dataset})"
        stands = f"acceptance is that of {of}, table {table.name}"
        if (table.method, table.model) != (method_of(proposer), model):
            notes.append(f"{stands}, and not of {method_of(proposer)} on {model}")
        if table.match_rate is None and isinstance(proposer, Ngram) and proposer.match_rate is None:
            notes.append(
                f"table {table.name} counts only steps with drafts; their share of steps is not known and taken as 1"
            )
        if proposer.depth < proposer.num_speculative_tokens:
            notes.append(f"table {table.name} was measured with chains of drafts; with a tree, more are accepted")
        if proposer.verification.rule != "rejection":
            notes.append(f"table {table.name} was measured with rule rejection, not {proposer.verification.rule}")
    measure = "; give rates of your own (acceptance)"
    return [Note("acceptance_assumed", text + measure) for text in dict.fromkeys(notes)]
