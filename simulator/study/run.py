"""A single run of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulator.common.notes import Note
from simulator.common.parallel import in_worker
from simulator.deployment.pricing import usd_per_hour
from simulator.engine.lifecycle import Progress
from simulator.engine.simulation import simulate
from simulator.errors import InputError
from simulator.results.columns import Refusal, Status
from simulator.results.metrics import summarise
from simulator.results.record import RunRecord
from simulator.results.view import RunView
from simulator.scenario import Scenario
from simulator.study.prepare import Prepared


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
        from simulator.results.provenance import check_same_scenario
        from simulator.results.store import write_results

        if not force:
            check_same_scenario(folder, self.scenario)
        write_results(folder, self.record, self.summary, self.scenario)


def execute(prepared: Prepared, *, steps: Path | None = None, progress: Progress | None = None) -> Run:
    """Simulate a prepared scenario. The folder `steps`, new or empty, gets a recording of all steps of each replica.

    Raises:
        InputError: the folder `steps` is not empty or steps cannot be recorded, or all requests were rejected.
        StalledError: the scheduling policy deadlocked.
    """
    scenario, table, resolved = prepared.scenario, prepared.table, prepared.resolved
    if steps is None and scenario.run.jobs != 1 and not in_worker():
        from simulator.engine.side_by_side import simulate_side_by_side

        record = simulate_side_by_side(scenario, table, resolved.services, progress=progress)
    elif steps is None:
        record = simulate(scenario, table, resolved.services, progress=progress)
    elif scenario.run.jobs != 1:
        raise InputError("run.jobs: steps are recorded in one process; leave run.jobs out, or --steps")
    else:
        from simulator.study.recording import mark_complete, recording

        with recording(prepared, steps) as recorders:
            record = simulate(scenario, table, resolved.services, observers=recorders.__getitem__, progress=progress)
        if record.complete:
            mark_complete(steps)
    if scenario.run.checks:
        from simulator.results.integrity import check

        check(record)
    refusals = _refusal_notes(record, prepared)
    _check_some_served(record, refusals)
    notes = [*table.notes, *resolved.notes, *refusals]
    return Run(scenario, record, summarise(record, scenario, notes, usd_per_hour(resolved, scenario.cost)))


def check_folders(
    scenario: Scenario, out: str | Path | None, steps: str | Path | None = None, force: bool = False
) -> None:
    """Verify, before the simulation, that results can be written to `out`, outside of the folder `steps`.

    Results of another scenario are replaced only with `force`.

    Raises:
        InputError: results cannot be written there.
    """
    if out is None:
        return
    from simulator.results.provenance import check_same_scenario
    from simulator.results.store import check_target

    check_target(out)
    if not force:
        check_same_scenario(out, scenario)
    if steps is not None:
        results, recordings = Path(out).resolve(), Path(steps).resolve()
        if results == recordings or results in recordings.parents or recordings in results.parents:
            raise InputError("--out and --steps: give two folders, neither of them inside the other")


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
