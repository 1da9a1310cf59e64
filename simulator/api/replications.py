"""`simulator.replicate`: one scenario simulated under several seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.api.boundary import boundary, check_counts
from simulator.api.scenarios import read
from simulator.common.progress import runs_bar
from simulator.scenario import Overrides, Source
from simulator.study.replications import Replications
from simulator.study.replications import replicate as replicate_scenario
from simulator.study.seeds import SeedOptions


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
    """Simulate a scenario under several seeds and pool the runs, as `servesim run --seeds N` does.

    Args:
        scenario, overrides, trace, trace_format: as for `load_scenario`.
        seeds: the number of seeds: the scenario's own and those after it.
        seed: the first seed, instead of the scenario's own.
        jobs: the number of processes, -1 for all cores.
        out: a folder for the pooled summary and the results directory of each run.
        force: replace results of another scenario, or of other seeds, in `out`.
        progress: show a bar on stderr, or call a function with the number of finished runs.

    Raises:
        InputError: the scenario or a parameter has a mistake in it.
        StalledError: the scheduling policy deadlocked.
        KeyboardInterrupt: Ctrl-C.
    """
    check_counts(seeds, jobs)
    found = read(scenario, overrides, seed, trace, trace_format)
    folder = None if out is None else Path(out)
    with runs_bar(seeds, progress is True) as bar:
        options = SeedOptions(seeds, jobs, folder, force, bar if isinstance(progress, bool) else progress)
        return replicate_scenario(found, options)
