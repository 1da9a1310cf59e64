"""`simulator.compare`: several scenarios over the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simulator.api.boundary import boundary, check_counts
from simulator.api.scenarios import loaded
from simulator.common.progress import runs_bar
from simulator.comparison import run as study
from simulator.comparison.different import Accepted
from simulator.comparison.files import write_comparison
from simulator.comparison.outcome import Comparison
from simulator.scenario import Overrides, Scenario, Source


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
    """Simulate scenarios over the same requests, under `seeds` seeds each, and say what differs.

    Scenarios are given as to `load_scenario`; `overrides`, `seed` (the first one), `trace` and `trace_format` are for
    all of them. `baseline` is the name of the design that the others are compared to (the first one), `jobs` the number
    of processes (-1: all cores), `out` a folder that gets what `servesim compare --out` writes, in the place of other
    scenarios' results only if `force`. `allow_different` names what may differ beside the deployments: `model`,
    `weights`, `kv_cache` or `workload`; `mixed_decoding` accepts other output lengths, and other laws of the output.
    `progress` shows a bar on stderr, or is called with the number of runs that are done.

    Raises:
        InputError: whatever is wrong in a scenario, or they differ in more than is allowed.
        StalledError: a policy deadlocked.
        KeyboardInterrupt: Ctrl-C.
    """
    check_counts(seeds, jobs)
    folder = None if out is None else Path(out)
    given = [scenarios] if isinstance(scenarios, str | Path | Mapping | Scenario) else scenarios
    designs = [loaded(each, overrides, seed, trace, trace_format) for each in given]
    with runs_bar(seeds * len(designs), progress is True) as bar:
        comparison = study.compare(
            designs,
            baseline=baseline,
            seeds=seeds,
            accepted=Accepted.of(allow_different, mixed_decoding),
            jobs=jobs,
            out=folder,
            force=force,
            progress=bar if isinstance(progress, bool) else progress,
        )
    if folder is not None:
        write_comparison(folder, comparison.document, comparison)
    return comparison
