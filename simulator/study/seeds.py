"""Runs of one scenario or several under successive seeds, in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from simulator.common.parallel import in_processes
from simulator.scenario import Scenario
from simulator.study.prepare import prepare
from simulator.study.same_requests import difference
from simulator.workload import RequestTable

#: Called after each run with the number of finished runs.
Progress = Callable[[int], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SeedOptions:
    """The number of seeds, the number of processes, and the folder for the results.

    The seeds are the scenario's own and those after it. `jobs` is -1 for all cores. Results of another scenario in
    the folder `out` are replaced only with `force`.
    """

    seeds: int = 5
    jobs: int = 1
    out: Path | None = None
    force: bool = False
    progress: Progress | None = None


def in_parallel(function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], options: SeedOptions) -> list[T]:
    """Call `function` with the arguments of each task in `options.jobs` processes; results are in the tasks' order."""
    results: list[T] = []
    for result in in_processes(function, tasks, options.jobs):
        results.append(result)
        if options.progress is not None:
            options.progress(len(results))
    return results


def depends_on_seed(scenario: Scenario, table: RequestTable) -> bool:
    """Return whether another seed draws requests other than `table`, those of the scenario's own seed."""
    if scenario.workload.trace is not None:
        return False
    return difference(table, prepare(replace(scenario, seed=scenario.seed + 1)).table) is not None
