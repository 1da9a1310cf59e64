"""A single run of a scenario."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from simulator.common.notes import Note
from simulator.common.shipped import file_finder
from simulator.deployment.acceptance import with_acceptance, with_tables_named
from simulator.deployment.pricing import usd_per_hour
from simulator.deployment.resolve import Resolved, resolve
from simulator.deployment.windows import window_notes
from simulator.engine import simulate
from simulator.engine.batches.build import needs_explicit_for
from simulator.engine.lifecycle import Progress
from simulator.engine.logs.step_recorder import StepRecorder
from simulator.errors import InputError
from simulator.results.columns import Refusal, Status
from simulator.results.integrity import check
from simulator.results.metrics import summarise
from simulator.results.provenance import check_same_scenario
from simulator.results.record import RunRecord
from simulator.results.store import PARTIAL, check_target, write_results
from simulator.results.view import RunView
from simulator.scenario import Scenario
from simulator.scenario.handover import Handover
from simulator.scenario.schema import Pool
from simulator.scheduling import Limits, limits
from simulator.workload import RequestTable, load_requests
from simulator.workload.selection import cut_at_context


@dataclass(frozen=True, repr=False, eq=False)
class Run(RunView):
    """A finished run: the scenario, the columns, and the summary that `--json` prints."""

    scenario: Scenario
    record: RunRecord
    summary: dict[str, Any]

    @property
    def partial(self) -> bool:
        """Whether the run was interrupted."""
        return not self.record.complete

    @property
    def _warmup(self) -> Literal["none", "mser5"] | int:
        """Rule for the warm-up: none, MSER-5, or a time in ns."""
        return self.scenario.run.warmup

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the results directory, as `servesim run --out` does; results of another scenario are replaced only with
        `force`.

        Raises:
            InputError: the folder holds other files, or cannot be written.
        """
        if not force:
            check_same_scenario(folder, self.scenario)
        write_results(folder, self.record, self.summary, self.scenario)


@dataclass(frozen=True, slots=True)
class Prepared:
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
    named = with_tables_named(scenario)
    resolved = resolve(named)
    scenario = resolved.settle(named)
    usd_per_hour(resolved, scenario.cost)  # fails for a GPU without a price
    schedulers = [pool.scheduler for pool in scenario.deployment.pools.values()]
    limits_of_pools = [limits(scheduler) for scheduler in schedulers]
    find = file_finder(None if scenario.origin is None else scenario.origin.path)
    table = load_requests(scenario.workload, scenario.seed, find, _columns_used(limits_of_pools))
    if any(limit.context_overflow == "cut" for limit in limits_of_pools):
        table = cut_at_context(table, resolved.max_model_len)
    if scenario.run.engine == "lazy":
        _check_lazy(resolved, table, scenario.deployment.handover)
    resolved = replace(resolved, notes=(*resolved.notes, *window_notes(resolved, table)))
    return Prepared(scenario, table, with_acceptance(resolved, scenario, table, find))


def _check_lazy(resolved: Resolved, table: RequestTable, handover: Handover | None) -> None:
    for pool in resolved.pools:
        why = needs_explicit_for(pool.settings, pool.service, table, handover)
        if why is not None:
            raise InputError(f"run.engine: lazy cannot follow {why}; leave run.engine out")


def _columns_used(limits_of_pools: Sequence[Limits]) -> frozenset[str]:
    """Return the optional columns of a workload that any scheduler uses."""
    used = {
        "prefix_id": any(limit.prefix_caching for limit in limits_of_pools),
        "priority": any(limit.by_priority for limit in limits_of_pools),
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def execute(prepared: Prepared, *, steps: Path | None = None, progress: Progress | None = None) -> Run:
    """Simulate a prepared scenario. The folder `steps`, new or empty, gets a recording of all steps of each replica.

    Raises:
        InputError: the folder `steps` is not empty or steps cannot be recorded, or all requests were rejected.
        StalledError: the scheduling policy deadlocked.
    """
    scenario, table, resolved = prepared.scenario, prepared.table, prepared.resolved
    with _recording(prepared, steps) as recorders:
        record = simulate(
            scenario,
            table,
            resolved.services,
            observers=recorders.__getitem__ if recorders else None,
            progress=progress,
        )
    if steps is not None and record.complete:
        (steps / PARTIAL).unlink()
    if scenario.run.checks:
        check(record)
    refusals = _refusal_notes(record, prepared)
    _check_some_served(record, refusals)
    notes = [*table.notes, *resolved.notes, *refusals]
    return Run(scenario, record, summarise(record, scenario, notes, usd_per_hour(resolved, scenario.cost)))


def check_folders(
    scenario: Scenario, out: str | Path | None, steps: str | Path | None = None, force: bool = False
) -> None:
    """Verify, before anything is simulated, that results can be written to `out`, outside of the folder `steps`.

    Results of another scenario are replaced only with `force`.

    Raises:
        InputError: results cannot be written there.
    """
    if out is None:
        return
    check_target(out)
    if not force:
        check_same_scenario(out, scenario)
    if steps is not None:
        results, recordings = Path(out).resolve(), Path(steps).resolve()
        if results == recordings or results in recordings.parents or recordings in results.parents:
            raise InputError("--out and --steps: give two folders, neither of them inside the other")


@contextlib.contextmanager
def _recording(prepared: Prepared, folder: Path | None) -> Iterator[list[StepRecorder]]:
    """Provide the recorders of the replicas, and close them in the end; the folder is marked partial meanwhile."""
    recorders = [] if folder is None else _recorders(prepared, folder)
    try:
        yield recorders
    finally:
        for recorder in recorders:
            recorder.close()


def _recorders(prepared: Prepared, folder: Path) -> list[StepRecorder]:
    if prepared.scenario.run.engine == "lazy":
        raise InputError("--steps records every sequence of every step, which run.engine: lazy does not compute")
    if prepared.scenario.deployment.handover is not None:
        raise InputError("--steps cannot record prefill and decode pools: a recording has no KV transfers")
    for pool in prepared.resolved.pools:
        if _varies_ahead(pool.settings):
            raise InputError(
                "--steps: a recording of asynchronous scheduling has one number of drafts for all steps "
                f"(speculation of pool {pool.name})"
            )
        if pool.service.lockstep:
            raise InputError(
                "--steps: a recording is of one scheduler that forms its steps alone, not of ranks that step together "
                f"(data_parallel of a mixture of experts, pool {pool.name})"
            )
        if pool.settings.memory.offload is not None:
            raise InputError(f"--steps: a recording has no loads from CPU memory (memory.offload of pool {pool.name})")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--steps {folder}: exists and is not an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PARTIAL).touch()
    replicas = [pool for pool in prepared.resolved.pools for _ in range(pool.settings.ranks)]
    return [
        StepRecorder(
            folder / str(number), pool.settings, pool.service.kv_blocks, pool.service.max_model_len, prepared.table
        )
        for number, pool in enumerate(replicas)
    ]


def _varies_ahead(pool: Pool) -> bool:
    """Return whether a pool schedules asynchronously with a varying number of drafts."""
    speculation = pool.speculation
    if speculation is None or not limits(pool.scheduler).async_scheduling:
        return False
    return speculation.length.TAG != "fixed" or speculation.disable_by_batch_size is not None


def _check_some_served(record: RunRecord, refusals: Sequence[Note]) -> None:
    """Raise InputError if every request was rejected: such a run has no result."""
    arrived = record.requests.status != Status.NOT_ARRIVED
    if refusals and bool((record.requests.status[arrived] == Status.REJECTED).all()):
        raise InputError(
            f"no request can be served: {'; '.join(note.text for note in refusals)}; shorten them, give the deployment "
            "more memory, or raise scheduler.max_model_len if it is set"
        )


def _refusal_notes(record: RunRecord, prepared: Prepared) -> list[Note]:
    limit = prepared.resolved.max_model_len
    pool_tokens = min(pool.kv_blocks * pool.block_size for pool in record.pools)
    speculates = any(pool.speculation is not None for pool in prepared.scenario.deployment.pools.values())
    kv = "their KV, with that of drafts under way," if speculates else "their KV"
    reasons = (
        (Refusal.CONTEXT_LIMIT, f"prompt and max_tokens exceed the context limit of {limit} tokens"),
        (Refusal.KV_POOL, f"{kv} exceeds the whole pool of {pool_tokens} tokens"),
    )
    notes = []
    for reason, text in reasons:
        count = int((record.requests.refusal == reason).sum())
        if count:
            notes.append(Note("requests_refused", f"{count} of {len(prepared.table)} requests refused: {text}"))
    return notes
