"""Fits of a host model to a user's own benchmark, without profiling kernels, and their errors on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import yaml

from cost_models import HostModel
from simulator.common.console import Screen, numbers_table
from simulator.errors import InputError
from simulator.validation.bench.reader import read_bench
from simulator.validation.errors import Compared
from simulator.validation.measured import read_rows
from simulator.validation.run import check_files, compare, fit_hosts, hosts_by_gpu, is_bench
from simulator.validation.setting import Row

_ENGINE = "vLLM V1 with asynchronous scheduling"
#: Metrics whose errors are shown, and their headings.
_METRICS = {
    "itl_mean_ms": "ITL mean",
    "ttft_mean_ms": "TTFT mean",
    "ttft_p90_ms": "TTFT p90",
    "e2e_mean_ms": "E2E mean",
}


@dataclass(frozen=True, slots=True)
class HostCalibration:
    """Host models by GPU, fitted to all rows, and predictions of held-out rows.

    `before` are predictions with the host model in use before, `after` with one fitted to the other groups of rows.
    `groups` names the kind of group that was held out. A single row cannot be held out: then `after` is of the row
    that was fitted, and `groups` is empty.
    """

    hosts: dict[str, HostModel]
    groups: str
    before: list[Compared]
    after: list[Compared]


def read_benchmarks(paths: Sequence[Path], given: dict[str, str]) -> list[Row]:
    """Read the rows of the files; a single JSON file with requests gives two halves, so that one can be held out.

    Raises:
        InputError: a file cannot be read, or describes nothing that can be simulated.
    """
    check_files(paths, given)
    parts = 2 if len(paths) == 1 else 1
    rows: list[Row] = []
    for path in paths:
        rows += read_bench(path, given, parts) if is_bench(path) else read_rows(path)
    if not any(row.setting is not None for row in rows):
        raise InputError(f"nothing to fit: {rows[0].reason if rows else 'the files have no rows'}")
    return rows


def calibrate_host(rows: Sequence[Row], jobs: int = -1) -> HostCalibration:
    """Fit host models to the rows, and test the fit on held-out groups of rows.

    A group holds the rows of one model; of one run, if there is only one model; of one part, if there is only one run.
    """
    usable = [row for row in rows if row.setting is not None and not row.overloaded and not row.note]
    if not usable:
        raise InputError("nothing to fit: every row is overloaded, noted or not simulated")
    before = compare(usable, 1, jobs)
    if len(usable) == 1:
        hosts = fit_hosts(usable, jobs)
        return HostCalibration(hosts, "", before, compare(usable, 1, jobs, hosts_by_gpu(hosts)))
    groups, of = _groups(usable)
    after: dict[str, Compared] = {}
    for group in dict.fromkeys(of.values()):
        hosts = fit_hosts([row for row in usable if of[row.where] != group], jobs)
        held_out = [row for row in usable if of[row.where] == group]
        for entry in compare(held_out, 1, jobs, hosts_by_gpu(hosts)):
            after[entry.row.where] = entry
    return HostCalibration(fit_hosts(usable, jobs), groups, before, [after[row.where] for row in usable])


def _groups(rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    """Return the kind of group that is held out, in words, and the group of each of two rows or more."""
    for groups, of in (
        ("model", {row.where: row.setting.model for row in rows if row.setting is not None}),
        ("run", {row.where: row.run for row in rows}),
    ):
        if len(set(of.values())) > 1:
            return groups, of
    return "part", {row.where: row.where for row in rows}


def print_calibration(found: HostCalibration, stream: TextIO | None = None) -> None:
    """Print the terms, and the errors on held-out rows before and after."""
    console = Screen(stream, width=120)
    terms = numbers_table("host terms, s", list(found.hosts), width=20)
    for name in asdict(next(iter(found.hosts.values()))):
        terms.add_row(name, *(f"{getattr(host, name):.4g}" for host in found.hosts.values()))
    console.print(terms)
    console.print()
    title, fitted = f"held out by {found.groups}: median error, %", "fitted to the others"
    if not found.groups:
        title, fitted = "error on the row that was fitted, %", "fitted to it"
    errors = numbers_table(title, list(_METRICS.values()), width=50)
    for name, compared in (("host model before", found.before), (fitted, found.after)):
        errors.add_row(name, *(_median(compared, metric) for metric in _METRICS))
    console.print(errors)
    if not found.groups:
        console.print("not tested on held-out rows: give results of two loads, or one with --save-detailed")
    for text in dict.fromkeys(text for entry in found.before for text in entry.row.assumptions):
        console.print(f"assumed: {text}")


def _median(compared: Sequence[Compared], metric: str) -> str:
    sizes = [
        abs(100 * (predicted / measured - 1))
        for entry in compared
        for name, measured, predicted in entry.pairs()
        if name == metric and measured > 0
    ]
    return f"{np.median(sizes):.2f}" if sizes else "-"


def write_host(found: HostCalibration, files: Sequence[str], folder: Path) -> Path:
    """Write `host.yaml` to a folder, which is created if missing. The file is written whole or not at all."""
    test = f"held out by {found.groups}" if found.groups else "not tested on other rows"
    source = f"fitted to {', '.join(files)} by `servesim calibrate --bench`; {test}"
    path = folder / "host.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(".host.yaml.part")
    partial.write_text(host_file(found.hosts, _ENGINE, source), encoding="utf-8")
    partial.replace(path)
    return path


def host_file(hosts: dict[str, HostModel], engine: str, source: str) -> str:
    """Return the text of a host file: the terms of the first GPU, and those of others where they differ."""
    gpus = list(hosts)
    terms = _digits(hosts[gpus[0]])
    data: dict[str, object] = {"engine": engine, "source": source, "terms": terms}
    others = {}
    for gpu in gpus[1:]:
        own = {name: value for name, value in _digits(hosts[gpu]).items() if value != terms[name]}
        if own:
            others[gpu] = own
    if others:
        data["gpus"] = others
    head = f"# Host model, times in seconds; see cost_models/specs/host.py. Fitted on {gpus[0]}.\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=110)


def _digits(host: HostModel) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in asdict(host).items()}
