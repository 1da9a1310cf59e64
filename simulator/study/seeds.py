"""Runs under several seeds, side by side on several cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from joblib import Parallel, delayed

from simulator.scenario import Scenario
from simulator.study.run import prepare
from simulator.study.same_requests import difference
from simulator.workload import RequestTable

#: Told after each run how many are done.
Progress = Callable[[int], None]
T = TypeVar("T")


def in_parallel(
    function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], jobs: int, progress: Progress | None
) -> list[T]:
    """Call `function` with the arguments of each task on `jobs` cores (-1: all); results in the tasks' order."""
    done = []
    for result in Parallel(n_jobs=jobs, return_as="generator")(delayed(function)(*task) for task in tasks):
        done.append(result)
        if progress is not None:
            progress(len(done))
    return done


def depends_on_seed(scenario: Scenario, table: RequestTable) -> bool:
    """Whether another seed draws other requests than `table`, those of the scenario's own seed."""
    if scenario.workload.trace is not None:
        return False
    return difference(table, prepare(replace(scenario, seed=scenario.seed + 1)).table) is not None
