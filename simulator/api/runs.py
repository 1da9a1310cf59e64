"""`simulator.run` and `simulator.dry_run`: a scenario simulated, or only sized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.api.boundary import boundary
from simulator.api.scenarios import loaded
from simulator.common.progress import Report, progress_bar
from simulator.scenario import Overrides, Source
from simulator.study.dry_run import dry_run as bounds_of
from simulator.study.run import Prepared, Run, check_folders, execute, prepare


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
    """Simulate a scenario: a file, the name of a shipped one, a mapping, or one that was loaded.

    The first parameters are those of `load_scenario`. `out` is a folder that gets the results directory, in the place
    of another scenario's only if `force`, `steps` one that gets a recording of every step; `progress` shows a bar on
    stderr, or is called with the simulated time in ns and the requests that are done.

    Raises:
        InputError: whatever is wrong in the input.
        StalledError: the policy deadlocked.
        KeyboardInterrupt: Ctrl-C; what had finished by then is in `out`, marked as partial.
    """
    prepared = prepare(loaded(scenario, overrides, seed, trace, trace_format))
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
    """Work out memory, concurrency and bounds of a scenario, with nothing simulated: what
    `servesim run --dry-run --json` prints. The parameters are those of `load_scenario`.

    Raises:
        InputError: whatever is wrong in the input.
    """
    return bounds_of(prepare(loaded(scenario, overrides, seed, trace, trace_format)))


def _execute(prepared: Prepared, steps: Path | None, progress: bool | Report) -> Run:
    if not isinstance(progress, bool):
        return execute(prepared, steps=steps, progress=progress)
    with progress_bar(len(prepared.table), progress) as bar:
        return execute(prepared, steps=steps, progress=bar)
