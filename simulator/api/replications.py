"""`simulator.replicate`: one scenario under several seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.api.boundary import boundary, check_counts
from simulator.api.scenarios import loaded
from simulator.common.progress import runs_bar
from simulator.scenario import Overrides, Source
from simulator.study import replications as study
from simulator.study.replications import Replications


@boundary
def replicate(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seeds: int = 10,
    seed: int | None = None,
    trace: str | Path | None = None,
    trace_format: str | None = None,
    jobs: int = -1,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool | Callable[[int], None] = False,
) -> Replications:
    """Simulate a scenario under `seeds` seeds, its own and those after it, on `jobs` cores (-1: all), and pool the
    runs: what `servesim run --seeds N` does. The other parameters are those of `run`; a function as `progress` is
    called with the number of runs that are done.

    Raises:
        InputError: whatever is wrong in the input.
        StalledError: the policy deadlocked.
    """
    check_counts(seeds, jobs)
    ready = loaded(scenario, overrides, seed, trace, trace_format)
    folder = None if out is None else Path(out)
    with runs_bar(seeds, progress is True) as bar:
        told = bar if isinstance(progress, bool) else progress
        return study.replicate(ready, seeds, jobs=jobs, out=folder, force=force, progress=told)
