"""Several scenarios over the same requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simulator.api.boundary import boundary
from simulator.errors import InputError
from simulator.progress import runs_bar
from simulator.scenario import Overrides, Source
from simulator.study.compare import run as study
from simulator.study.compare.comparison import Comparison
from simulator.study.compare.different import Accepted
from simulator.study.compare.files import write_comparison


@boundary
def compare(
    scenarios: Sequence[Source],
    overrides: Overrides = (),
    *,
    baseline: str | None = None,
    seeds: int = 5,
    trace: str | Path | None = None,
    allow_different: Sequence[str] = (),
    mixed_decoding: bool = False,
    jobs: int = 1,
    out: str | Path | None = None,
    force: bool = False,
    progress: bool | Callable[[int], None] = False,
) -> Comparison:
    """Simulate scenarios over the same requests, under `seeds` seeds each, and say what differs.

    Scenarios and `overrides`, which are for all of them, are given as to `load_scenario`. `baseline` is the name of the
    design that the others are compared to (the first one), `jobs` the number of processes (-1: all cores), `out` a
    folder that gets what `servesim compare --out` writes, in the place of other scenarios' results only if `force`.
    `allow_different` names what may differ beside the deployments: `model`, `weights`, `kv_cache` or `workload`;
    `mixed_decoding` accepts other output lengths, and other laws of the output. `progress` shows a bar on stderr, or is
    called with the number of runs that are done.

    Raises:
        InputError: whatever is wrong in a scenario, or they differ in more than is allowed.
        StalledError: a policy deadlocked.
        KeyboardInterrupt: Ctrl-C.
    """
    if not isinstance(seeds, int) or seeds < 1:
        raise InputError(f"seeds: expected a whole number of at least 1, found {seeds!r}")
    folder = None if out is None else Path(out)
    with runs_bar(seeds * len(scenarios), progress is True) as bar:
        comparison = study.compare(
            scenarios,
            overrides,
            baseline=baseline,
            seeds=seeds,
            trace=trace,
            accepted=Accepted.of(allow_different, mixed_decoding),
            jobs=jobs,
            out=folder,
            force=force,
            progress=bar if isinstance(progress, bool) else progress,
        )
    if folder is not None:
        write_comparison(folder, comparison.document, comparison)
    return comparison
