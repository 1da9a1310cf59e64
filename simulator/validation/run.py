"""Validation of measured rows: simulation in parallel on several cores, comparison, and fits of host models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cost_models import HostModel, load_host
from cost_models.calibration.host import PRIOR, fit_host
from simulator.errors import InputError
from simulator.validation.bench.reader import read_bench
from simulator.validation.draws import Hosts, Known, draw_runs
from simulator.validation.errors import Compared
from simulator.validation.host_samples import observe
from simulator.validation.measured import read_rows
from simulator.validation.replay import Predicted
from simulator.validation.setting import Load, Row, Setting

#: Rounds of simulating and fitting: the simulated times of prefill and waiting depend on the terms of the round before.
_ROUNDS = 2
#: Allowed change of a step's terms, relative to their uncertainty: from those of another GPU with the same engine; and
#: from the shipped ones, for a user's own server.
_DOUBT, _OWN_DOUBT = 0.2, 4.0
_SHIPPED = "vllm"
#: Most requests of a stage that a fit simulates.
_FIT_REQUESTS = 2_000
_ANY = Load(0)


def read_measured(paths: Iterable[Path], given: dict[str, str]) -> list[Row]:
    """Read the rows of CSV files, and of `vllm bench serve` JSON files (whose server `given` describes)."""
    paths = list(paths)
    check_files(paths, given)
    rows: list[Row] = []
    for path in paths:
        rows += read_bench(path, given) if is_bench(path) else read_rows(path)
    if not rows:
        raise InputError(f"{', '.join(map(str, paths))}: no rows after the header")
    return rows


def is_bench(path: Path) -> bool:
    """Return whether the file is a result of `vllm bench serve`, by its name; others are CSV files of rows."""
    return path.suffix.lower() == ".json"


def check_files(paths: Sequence[Path], given: Mapping[str, str]) -> None:
    """Raise InputError for a file that is given twice, and for a server that is described for CSV files alone."""
    for path in paths:
        if paths.count(path) > 1:
            raise InputError(f"{path}: is given twice")
    if given and not any(is_bench(path) for path in paths):
        raise InputError(
            f"{', '.join(given)}: describes the server of a `vllm bench serve` JSON; CSV files describe their own"
        )


def compare(
    rows: Sequence[Row],
    seeds: int = 1,
    jobs: int = -1,
    host: Hosts = lambda row: None,
    known: Known | None = None,
) -> list[Compared]:
    """Simulate the rows, in their order; the predictions are medians over `seeds` independent draws of the requests.

    Rows measured one after the other on one server are simulated in the same way. `host(row)` replaces the host model
    of a row. For `steady` rows two draws that agree within 1% are enough. Results in `known` are used, and new ones are
    added to it.
    """
    found: dict[str, Compared] = {}
    for run, draws in zip(runs := _runs(rows), draw_runs(runs, seeds, jobs, host, known), strict=True):
        for at, row in enumerate(run):
            failed = [draw for draw in draws if isinstance(draw, str)]
            if failed:
                found[row.where] = Compared(row.refused(failed[0]), None)
            else:
                found[row.where] = Compared(row, _median([draw[at] for draw in draws if not isinstance(draw, str)]))
    return [found.get(row.where, Compared(row, None)) for row in rows]


def leave_one_model_out(rows: Sequence[Row], seeds: int = 1, jobs: int = -1) -> list[Compared]:
    """Predict the rows of each model with host terms fitted to the rows of all others."""
    models = list(dict.fromkeys(row.setting.model for row in rows if row.setting is not None))
    if len(models) < 2:
        raise InputError("leaving one model out needs rows of two models that can be simulated, or more")
    found: dict[str, Compared] = {}
    known: Known = {}  # the fits have most rows in common, and begin with the same simulations
    for model in models:
        hosts = fit_hosts([row for row in rows if row.setting is not None and row.setting.model != model], jobs, known)
        held_out = [row for row in rows if row.setting is not None and row.setting.model == model]
        for entry in compare(held_out, seeds, jobs, hosts_by_gpu(hosts)):
            found[entry.row.where] = entry
    return [found.get(row.where, Compared(row, None)) for row in rows]


def hosts_by_gpu(hosts: Mapping[str, HostModel]) -> Hosts:
    """Return a function from a row to the host model of its GPU: the first one for other GPUs, None without any."""
    first = next(iter(hosts.values()), None)
    return lambda row: hosts.get(row.setting.gpu, first) if row.setting is not None else first


def fit_hosts(rows: Sequence[Row], jobs: int = -1, known: Known | None = None) -> dict[str, HostModel]:
    """Fit host models to the measured rows, by GPU: first the GPU with the most rows, the others from its values.

    A user's own benchmark corrects the shipped host model. Other rows are fitted from a prior that does not depend on
    them.
    """
    usable = [row for row in rows if row.setting is not None and not row.overloaded and not row.note]
    by_gpu: dict[str, list[Row]] = {}
    for row in usable:
        assert row.setting is not None
        by_gpu.setdefault(row.setting.gpu, []).append(row)
    found: dict[str, HostModel] = {}
    current: HostModel | None = None
    for gpu in sorted(by_gpu, key=lambda gpu: (-len(by_gpu[gpu]), gpu)):
        if all(row.own for row in by_gpu[gpu]):
            begin, doubt = load_host(_SHIPPED, gpu), _OWN_DOUBT
        elif current is None:
            begin, doubt = PRIOR, 1.0
        else:
            begin, doubt = current, _DOUBT
        found[gpu] = _fit(by_gpu[gpu], begin, doubt, jobs, known)
        current = current or found[gpu]
    return found


def _fit(rows: Sequence[Row], begin: HostModel, doubt: float, jobs: int, known: Known | None) -> HostModel:
    """Simulate with the current terms and fit them to the differences, repeatedly: the terms change the batches."""
    current, rows = begin, [_shortened(row) for row in rows]
    for _ in range(_ROUNDS):
        compared = compare(rows, 1, jobs, lambda row, host=current: host, known)  # type: ignore[misc]
        seen = [observe(each.row, each.predicted, current) for each in compared if each.predicted is not None]
        current = fit_host([one for one in seen if one is not None], begin, doubt)
    return current


def _shortened(row: Row) -> Row:
    """Return the row with a shorter load: a fit uses only means, which need fewer requests."""
    assert row.setting is not None
    load = row.setting.load
    if row.own or load.concurrency is not None or load.requests <= _FIT_REQUESTS:
        return row
    duration_ns = None if load.duration_ns is None else load.duration_ns * _FIT_REQUESTS // load.requests
    shorter = replace(load, requests=_FIT_REQUESTS, duration_ns=duration_ns)
    return replace(row, setting=replace(row.setting, load=shorter))


def _runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Return runs: rows that were measured one after the other, in that order, without rows that cannot be simulated.

    Rows of one experiment with another server, other lengths or other clients in a closed loop are a separate run.
    """
    runs: dict[tuple[str, Setting], list[Row]] = {}
    for row in rows:
        if row.setting is not None:
            load = row.setting.load if row.setting.load.concurrency is not None else _ANY
            runs.setdefault((row.run, replace(row.setting, load=load)), []).append(row)
    return [sorted(run, key=lambda row: row.stage) for run in runs.values()]


def _median(draws: Sequence[Predicted]) -> Predicted:
    if len(draws) == 1:
        return draws[0]
    names = [name for name in draws[0].metrics if all(name in draw.metrics for draw in draws)]
    return Predicted(
        {name: float(np.median([draw.metrics[name] for draw in draws])) for name in names},
        2 * sum(draw.overloaded for draw in draws) > len(draws),
        float(np.median([draw.running for draw in draws])),
        float(np.median([draw.prompt_tokens for draw in draws])),
        float(np.median([draw.output_tokens for draw in draws])),
        max(draw.refused for draw in draws),
        draws[0].engine,
    )
