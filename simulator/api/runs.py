"""`simulator.run` and `simulator.dry_run`: simulating a scenario, or only computing its memory and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.api.boundary import boundary
from simulator.api.scenarios import read
from simulator.common.progress import Report, progress_bar
from simulator.scenario import Overrides, Source
from simulator.study.dry_run import dry_run as bounds_of
from simulator.study.prepare import Prepared, prepare
from simulator.study.run import Run, check_folders, execute


@boundary
def run(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    trace: str | Path | None = None,
    trace_format: str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    steps: str | Path | None = None,
    progress: bool | Report = False,
) -> Run:
    """Simulate a scenario.

    Args:
        scenario, overrides, seed, trace, trace_format: as for `load_scenario`.
        out: a folder for the results directory.
        force: replace results of another scenario in `out`.
        steps: a folder, new or empty, for a recording of every step.
        progress: show a bar on stderr, or call a function with the simulated time in ns and the number of finished
            requests.

    Raises:
        InputError: the scenario or a parameter has a mistake in it.
        StalledError: the scheduling policy deadlocked.
        KeyboardInterrupt: Ctrl-C; the results up to then are in `out`, marked as partial.
    """
    prepared = prepare(read(scenario, overrides, seed, trace, trace_format))
    check_folders(prepared.scenario, out, steps, force)
    finished = _execute(prepared, None if steps is None else Path(steps), progress)
    if out is not None:
        finished.save(out, force=force)
    if finished.partial:
        raise KeyboardInterrupt
    return finished


@boundary
def dry_run(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    trace: str | Path | None = None,
    trace_format: str | None = None,
) -> dict[str, Any]:
    """Return memory, concurrency and bounds of a scenario without simulating it, as `servesim run --dry-run --json`
    prints them.

    The parameters are those of `load_scenario`.

    Raises:
        InputError: the scenario has a mistake in it.
    """
    return bounds_of(prepare(read(scenario, overrides, seed, trace, trace_format)))


def _execute(prepared: Prepared, steps: Path | None, progress: bool | Report) -> Run:
    if not isinstance(progress, bool):
        return execute(prepared, steps=steps, progress=progress)
    with progress_bar(len(prepared.table), progress) as bar:
        return execute(prepared, steps=steps, progress=bar)
