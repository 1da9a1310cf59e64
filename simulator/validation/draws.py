"""Independent draws of measured runs, side by side on several cores; what is the same for two runs is drawn once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from joblib import Parallel, delayed

from cost_models import HostModel
from simulator.common.progress import bars_are_shown, runs_bar
from simulator.errors import InputError, StalledError
from simulator.validation.replay import Predicted, beside, replay
from simulator.validation.setting import Row, Setting

Hosts = Callable[[Row], HostModel | None]
#: What a run's rows are predicted to be, or why they cannot be.
Draw = list[Predicted] | str
#: Steady rows need no third draw if the first two are this near to each other in all that was measured. Others keep all
#: of theirs: numbers of drafts, say, are compared on the same draws, where differences are far smaller than the spread.
_FEW, _NEAR = 2, 0.01


class _Task(NamedTuple):
    """One simulation."""

    stages: tuple[Setting, ...]
    host: HostModel | None
    seed: int


#: What was simulated so far.
Known = dict[_Task, Draw]


def drawn(
    runs: Sequence[Sequence[Row]], seeds: int, jobs: int, host: Hosts, known: Known | None = None
) -> list[list[Draw]]:
    """Of each run, `seeds` draws, or fewer if its rows are steady and the first ones agree.

    The rows of a run were measured one after the other. `host(row)` replaces the host model of a row. What is `known`
    is taken from there, and what is simulated is added.
    """
    hosts = [host(run[0]) for run in runs]
    known = {} if known is None else known
    few = [min(seeds, _FEW) if all(row.steady for row in run) else seeds for run in runs]
    _simulate(_tasks(runs, hosts, few), known, jobs)
    counts = [
        few_draws if _agree(run, [_draw(run, of, seed, known) for seed in range(few_draws)]) else seeds
        for run, of, few_draws in zip(runs, hosts, few, strict=True)
    ]
    _simulate(_tasks(runs, hosts, counts), known, jobs)
    return [
        [_draw(run, of, seed, known) for seed in range(count)]
        for run, of, count in zip(runs, hosts, counts, strict=True)
    ]


def _tasks(runs: Sequence[Sequence[Row]], hosts: Sequence[HostModel | None], counts: Sequence[int]) -> Iterable[_Task]:
    for run, host, count in zip(runs, hosts, counts, strict=True):
        for stages in filter(None, (_stages(run), _plain(run))):
            yield from (_task(stages, host, seed) for seed in range(count))


def _task(stages: tuple[Setting, ...], host: HostModel | None, seed: int) -> _Task:
    """The simulation of stages with a seed; the same one for all seeds where nothing is drawn."""
    return _Task(stages, host, 0 if all(stage.settled for stage in stages) else seed)


def _stages(run: Sequence[Row]) -> tuple[Setting, ...]:
    return tuple(row.setting for row in run if row.setting is not None)


def _plain(run: Sequence[Row]) -> tuple[Setting, ...]:
    """The settings without speculation, of the rows for which that was measured, too."""
    return tuple(row.plain for row in run if row.plain is not None)


def _simulate(tasks: Iterable[_Task], known: Known, jobs: int) -> None:
    """Add to `known` what it lacks."""
    missing = [task for task in dict.fromkeys(tasks) if task not in known]
    draws = Parallel(n_jobs=jobs, return_as="generator")(delayed(_attempt)(task) for task in missing)
    with runs_bar(len(missing), bars_are_shown()) as progress:
        for done, (task, draw) in enumerate(zip(missing, draws, strict=True), 1):
            known[task] = draw
            if progress is not None:
                progress(done)


def _attempt(task: _Task) -> Draw:
    try:
        return replay(task.stages, task.seed, task.host)
    except (InputError, StalledError) as error:
        return str(error)


def _draw(run: Sequence[Row], host: HostModel | None, seed: int, known: Known) -> Draw:
    """The run, beside the same one without speculation if that was measured, too."""
    found = known[_task(_stages(run), host, seed)]
    plain = known[_task(_plain(run), host, seed)] if _plain(run) else None
    if plain is None or isinstance(found, str):
        return found
    return plain if isinstance(plain, str) else [beside(*pair) for pair in zip(found, plain, strict=True)]


def _agree(run: Sequence[Row], draws: Sequence[Draw]) -> bool:
    """Whether draws are near to each other in all that was measured of the run's rows."""
    for one, other in combinations(draws, 2):
        if isinstance(one, str) or isinstance(other, str):
            return one == other
        for row, first, second in zip(run, one, other, strict=True):
            for name in row.measured:
                values = first.metrics.get(name), second.metrics.get(name)
                if None not in values and abs(values[0] / values[1] - 1) > _NEAR:  # type: ignore[operator]
                    return False
    return True
