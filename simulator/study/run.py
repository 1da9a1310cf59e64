"""One run of one scenario."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from simulator.results.integrity import check
from simulator.results.metrics import summarise
from simulator.results.provenance import check_same_scenario
from simulator.results.record import Refusal, RunRecord, Status
from simulator.results.store import PARTIAL, check_target, write_results
from simulator.results.view import RunView
from simulator.results.warmup import select
from simulator.scenario import Scenario
from simulator.scenario.handover import Handover
from simulator.scenario.schedulers import VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scheduling import Limits, limits
from simulator.workload import RequestTable, load_requests
from simulator.workload.selection import cut_at_context

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Run(RunView):
    """A finished run: what was asked for, the columns, and the summary that `--json` prints."""

    scenario: Scenario
    record: RunRecord
    summary: dict[str, Any]

    @property
    def partial(self) -> bool:
        """Whether the run was interrupted."""
        return not self.record.complete

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the results directory, as `servesim run --out` does: in the place of another scenario's results only if
        `force`.

        Raises:
            InputError: the folder holds something else, or cannot be written.
        """
        if not force:
            check_same_scenario(folder, self.scenario)
        write_results(folder, self.record, self.summary, self.scenario)

    def latency_figure(self) -> Figure:
        """The distributions of TTFT and ITL: `latency.png` of the results directory."""
        from simulator.results.plots import latency_figure

        return latency_figure(self.record, self.summary, select(self.record, self.scenario.run.warmup).kept)

    def load_figure(self) -> Figure:
        """Requests, KV memory and tokens over time: `load.png` of the results directory."""
        from simulator.results.plots import load_figure

        return load_figure(self.record, self.summary)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario with its requests and its deployment in numbers: whatever is wrong in the input is found by now.

    `scenario` has what the given one left open: settings of the engine's version, and tables of acceptance.
    """

    scenario: Scenario
    table: RequestTable
    resolved: Resolved


def prepare(scenario: Scenario) -> Prepared:
    """Resolve the deployment and read or draw the requests.

    Raises:
        InputError: whatever is wrong in the scenario, its model, its GPU or its trace.
    """
    named = with_tables_named(scenario)
    resolved = resolve(named)
    scenario = resolved.settle(named)
    usd_per_hour(resolved, scenario.cost)  # a GPU without a price is told before anything is simulated
    schedulers = [pool.scheduler for pool in scenario.deployment.pools.values()]
    asked = [limits(scheduler) for scheduler in schedulers]
    find = file_finder(None if scenario.origin is None else scenario.origin.path)
    table = load_requests(scenario.workload, scenario.seed, find, _simulated(asked))
    if any(limit.context_overflow == "cut" for limit in asked):
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


def _simulated(asked: Sequence[Limits]) -> frozenset[str]:
    """The optional columns of a workload that a scheduler looks at."""
    looked_at = {
        "prefix_id": any(limit.prefix_caching for limit in asked),
        "priority": any(limit.by_priority for limit in asked),
    }
    return frozenset(name for name, looks in looked_at.items() if looks)


def execute(prepared: Prepared, *, steps: Path | None = None, progress: Progress | None = None) -> Run:
    """Simulate. `steps` is a folder, new or empty, that gets one recording of every step for each replica.

    Raises:
        InputError: the folder `steps` is not empty, or the scenario insists on the lazy engine beside it; or all
            requests were refused.
        StalledError: the policy deadlocked.
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
    """Verify, before anything is simulated, that results can be written to `out`, apart from recordings in `steps`, and
    that they take the place of no other scenario's, unless `force`.

    Raises InputError if not.
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
    """The recorders of the replicas; until the run is complete, the folder is marked as partial."""
    recorders = [] if folder is None else _recorders(prepared, folder)
    try:
        yield recorders
    finally:
        for recorder in recorders:
            recorder.close()


def _recorders(prepared: Prepared, folder: Path) -> list[StepRecorder]:
    if prepared.scenario.run.engine == "lazy":
        raise InputError("--steps records every sequence of every step, which run.engine: lazy does not look at")
    if prepared.scenario.deployment.handover is not None:
        raise InputError("--steps cannot record prefill and decode pools: what is handed over arrives in no recording")
    for pool in prepared.resolved.pools:
        tag = pool.settings.scheduler.TAG
        if tag != VllmScheduler.TAG:
            raise InputError(f"--steps records the steps of scheduler.policy: vllm, not of {tag} (pool {pool.name})")
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
    """Whether a pool forms steps ahead, with different numbers of drafts."""
    speculation = pool.speculation
    if speculation is None or not limits(pool.scheduler).async_scheduling:
        return False
    return speculation.length.TAG != "fixed" or speculation.disable_by_batch_size is not None


def _check_some_served(record: RunRecord, refusals: Sequence[Note]) -> None:
    """Raise InputError if every request was refused: such a run has no result."""
    came = record.requests.status != Status.NOT_ARRIVED
    if refusals and bool((record.requests.status[came] == Status.REJECTED).all()):
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
