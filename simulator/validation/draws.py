"""Independent draws of measured runs, in parallel on several cores; equal simulations of several runs are done once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from cost_models import HostModel
from simulator.common.parallel import in_processes
from simulator.common.progress import bars_are_shown, runs_bar
from simulator.errors import InputError, StalledError
from simulator.validation.replay import Predicted, replay, with_plain_metrics
from simulator.validation.setting import Row, Setting

Hosts = Callable[[Row], HostModel | None]
#: Predictions of a run's rows, or the reason why there are none.
Draw = list[Predicted] | str
#: Steady rows need no third draw if all measured metrics of the first two are this near to each other. Other rows have
#: all draws: different numbers of drafts, for example, are compared on the same draws, where their differences are far
#: smaller than those between draws.
_FEW, _NEAR = 2, 0.01


class _Task(NamedTuple):
    """One simulation."""

    stages: tuple[Setting, ...]
    host: HostModel | None
    seed: int


#: Results of the simulations so far.
Known = dict[_Task, Draw]


def draw_runs(
    runs: Sequence[Sequence[Row]], seeds: int, jobs: int, host: Hosts, known: Known | None = None
) -> list[list[Draw]]:
    """Return `seeds` draws of each run, or fewer if its rows are steady and the first draws agree.

    The rows of a run were measured one after the other. `host(row)` replaces the host model of a row. Results in
    `known` are used, and new ones are added to it.
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
    """Return the simulation of stages with a seed; the same one for all seeds if nothing is drawn."""
    return _Task(stages, host, 0 if all(stage.deterministic for stage in stages) else seed)


def _stages(run: Sequence[Row]) -> tuple[Setting, ...]:
    return tuple(row.setting for row in run if row.setting is not None)


def _plain(run: Sequence[Row]) -> tuple[Setting, ...]:
    """Return the settings without speculation, of the rows that were also measured in this way."""
    return tuple(row.plain for row in run if row.plain is not None)


def _simulate(tasks: Iterable[_Task], known: Known, jobs: int) -> None:
    """Do the simulations that are not in `known`, and add their results to it."""
    missing = [task for task in dict.fromkeys(tasks) if task not in known]
    draws = in_processes(_attempt, [(task,) for task in missing], jobs)
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
    """Return the draw of a run, with the metrics of the same run without speculation if that was measured, too."""
    found = known[_task(_stages(run), host, seed)]
    plain = known[_task(_plain(run), host, seed)] if _plain(run) else None
    if plain is None or isinstance(found, str):
        return found
    return plain if isinstance(plain, str) else [with_plain_metrics(*pair) for pair in zip(found, plain, strict=True)]


def _agree(run: Sequence[Row], draws: Sequence[Draw]) -> bool:
    """Return whether draws are near to each other in all metrics that were measured of the run's rows."""
    for one, other in combinations(draws, 2):
        if isinstance(one, str) or isinstance(other, str):
            return one == other
        for row, first, second in zip(run, one, other, strict=True):
            for name in row.measured:
                values = first.metrics.get(name), second.metrics.get(name)
                if None not in values and abs(values[0] / values[1] - 1) > _NEAR:  # type: ignore[operator]
                    return False
    return True
