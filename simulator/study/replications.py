"""Replications of a scenario: independent runs under several seeds."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.common.html import heading, listed, paragraph
from simulator.common.notes import Note
from simulator.deployment.acceptance import draws_acceptance
from simulator.errors import InputError
from simulator.results.provenance import REPLACE, check_same_scenario
from simulator.results.replications import Replication, pooled_summary, replication_of, title_of
from simulator.results.schedulers import scheduler_rows
from simulator.results.store import check_target
from simulator.results.view import latency_html, main_figures, warning_count
from simulator.scenario import Scenario
from simulator.study.prepare import prepare
from simulator.study.run import execute
from simulator.study.seeds import SeedOptions, depends_on_seed, in_parallel

DOCUMENT = "replications.json"
_FOLDER = re.compile(r"seed-[0-9]+")


@dataclass(frozen=True, eq=False)
class Replications:
    """The pooled result of one scenario's runs under `seeds`.

    `summary` is the document that `servesim run --seeds N --json` prints.
    """

    scenario: Scenario
    seeds: tuple[int, ...]
    summary: dict[str, Any]

    def __repr__(self) -> str:
        figures = main_figures(self.summary) + warning_count(self.summary)
        return f"{type(self).__name__}({title_of(self.summary)}: {'; '.join(figures)})"

    def _repr_html_(self) -> str:
        """Return the main figures, the simulated engine, the pooled latencies in ms and the warnings as HTML."""
        facts = paragraph("; ".join(main_figures(self.summary)))
        facts += "".join(paragraph(f"{label}: {line}") for label, line in scheduler_rows(self.summary["schedulers"]))
        latencies = latency_html(self.summary)
        return heading(title_of(self.summary)) + facts + latencies + listed(self.summary["warnings"])


def replicate(scenario: Scenario, options: SeedOptions) -> Replications:
    """Simulate the scenario under several seeds and pool the runs.

    If neither the requests nor the draws of accepted drafts depend on the seed, one run is simulated. The folder
    `options.out` gets the summary, `replications.json`, and a results directory of each run, `seed-N`; results of
    another scenario, or of other seeds, are replaced only with `force`.

    Raises:
        InputError: the scenario has a mistake in it, or the folder holds other files.
        StalledError: the scheduling policy deadlocked.
        KeyboardInterrupt: Ctrl-C ended one of the runs early.
    """
    prepared = prepare(scenario)
    vary, notes = depends_on_seed(scenario, prepared.table), []
    seeds, out = options.seeds, options.out
    if not vary and seeds > 1:
        drawing = draws_acceptance(prepared.scenario)
        seeds = seeds if drawing else 1
        notes.append(Note("requests_fixed", _FIXED + (_DRAFTS if drawing else _ONE)))
    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    folders = [None if out is None else out / f"seed-{number}" for number in numbers]
    if out is not None:
        _check_folder(out, scenario, [folder for folder in folders if folder is not None], options.force)
    tasks = [(replace(scenario, seed=number), folder) for number, folder in zip(numbers, folders, strict=True)]
    runs = in_parallel(_replication, tasks, options)
    summary = pooled_summary(prepared.scenario, numbers, runs, notes, vary)
    if out is not None:
        _write(out, summary, [folder for folder in folders if folder is not None])
    return Replications(scenario, numbers, summary)


_FIXED = "the requests are the same under every seed, as those of a trace are: "
_ONE = "the scenario runs once, and there are no intervals over runs"
_DRAFTS = "the runs differ only in the draws of accepted drafts, so that there are no intervals over them"


def _replication(scenario: Scenario, folder: Path | None) -> Replication:
    finished = execute(prepare(scenario))
    if not finished.record.complete:
        raise KeyboardInterrupt
    if folder is not None:
        finished.save(folder, force=True)  # `_check_folder` has verified the folder
    return replication_of(finished.record, finished.scenario, finished.summary)


def _check_folder(out: Path, scenario: Scenario, folders: list[Path], force: bool) -> None:
    """Verify, before the simulation, that replications can be written to `out`.

    Raises:
        InputError: it is a file, it holds other files, or, unless `force`, it holds replications of another scenario or
            of other seeds.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; replications need a folder")
    for entry in sorted(out.iterdir()) if out.is_dir() else ():
        if entry.name != DOCUMENT and not _FOLDER.fullmatch(entry.name):
            raise InputError(f"{out}: holds {entry.name}, which is not part of replications; choose another folder")
        if entry.name != DOCUMENT and entry not in folders and not force:
            raise InputError(f"{out}: holds results of {entry.name}, which is not among these seeds; {REPLACE}")
        if entry.name != DOCUMENT and entry not in folders:
            check_target(entry)
    for folder in folders:
        check_target(folder)
        if not force:
            check_same_scenario(folder, scenario)


def _write(out: Path, summary: dict[str, Any], folders: list[Path]) -> None:
    """Write the summary beside the results directories of the runs, and remove those of other seeds."""
    try:
        for entry in sorted(out.iterdir()):
            if entry.is_dir() and entry not in folders:
                shutil.rmtree(entry)
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
        (out / DOCUMENT).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out}: the replications could not be written: {error.strerror or error}") from error
