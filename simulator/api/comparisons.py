"""`simulator.compare`: several scenarios simulated over the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simulator.api.boundary import boundary, check_counts
from simulator.api.scenarios import read
from simulator.common.progress import runs_bar
from simulator.comparison.designs import load_designs
from simulator.comparison.differences import AllowedDifferences
from simulator.comparison.files import write_comparison
from simulator.comparison.outcome import Comparison
from simulator.comparison.run import compare as compare_designs
from simulator.scenario import Overrides, Scenario, Source
from simulator.study.seeds import SeedOptions


@boundary
def compare(
    scenarios: Sequence[Source],
    overrides: Overrides = (),
    *,
    baseline: str | None = None,
    seeds: int = 5,
    seed: int | None = None,
    trace: str | Path | None = None,
    trace_format: str | None = None,
    allow_different: Sequence[str] = (),
    mixed_decoding: bool = False,
    jobs: int = 1,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool | Callable[[int], None] = False,
) -> Comparison:
    """Simulate scenarios over the same requests, each under `seeds` seeds, and return their results and differences.

    Args:
        scenarios: two scenarios or more, each given as to `load_scenario`.
        overrides, trace, trace_format: as for `load_scenario`, applied to all scenarios.
        baseline: the name of the scenario to which the others are compared, by default the first one.
        seeds: the number of seeds.
        seed: the first seed, instead of the scenarios' own.
        allow_different: allowed differences beside the deployment: `model`, `weights`, `kv_cache` or `workload`.
        mixed_decoding: allow different output lengths, and rules for accepting drafts that change the output.
        jobs: the number of processes, -1 for all cores.
        out: a folder for the files that `servesim compare --out` writes.
        force: replace results of other scenarios in `out`.
        progress: show a bar on stderr, or call a function with the number of finished runs.

    Raises:
        InputError: a scenario has a mistake in it, or the scenarios differ in more than is allowed.
        StalledError: a scheduling policy deadlocked.
        KeyboardInterrupt: Ctrl-C.
    """
    check_counts(seeds, jobs)
    folder = None if out is None else Path(out)
    given = [scenarios] if isinstance(scenarios, str | Path | Mapping | Scenario) else scenarios
    allowed = AllowedDifferences.of(allow_different, mixed_decoding)
    designs = load_designs([read(each, overrides, seed, trace, trace_format) for each in given], allowed=allowed)
    with runs_bar(seeds * len(designs), progress is True) as bar:
        options = SeedOptions(seeds, jobs, folder, force, bar if isinstance(progress, bool) else progress)
        comparison = compare_designs(designs, options, baseline=baseline, allowed=allowed)
    if folder is not None:
        write_comparison(folder, comparison.document, comparison)
    return comparison
