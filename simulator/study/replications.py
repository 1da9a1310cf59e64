"""Replications: one scenario under several seeds."""

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
from simulator.results.view import latencies_of, served_of, warned_of
from simulator.scenario import Scenario
from simulator.study.run import execute, prepare
from simulator.study.seeds import Progress, depends_on_seed, in_parallel

DOCUMENT = "replications.json"
_FOLDER = re.compile(r"seed-[0-9]+")


@dataclass(frozen=True, eq=False)
class Replications:
    """Finished runs of one scenario under several seeds; `summary` is what `servesim run --seeds N --json` prints."""

    scenario: Scenario
    seeds: tuple[int, ...]
    summary: dict[str, Any]

    def __repr__(self) -> str:
        figures = served_of(self.summary) + warned_of(self.summary)
        return f"{type(self).__name__}({title_of(self.summary)}: {'; '.join(figures)})"

    def _repr_html_(self) -> str:
        """Headline figures, which engine was simulated, the latencies of all runs together in ms, and the warnings."""
        facts = paragraph("; ".join(served_of(self.summary)))
        facts += "".join(paragraph(f"{label}: {line}") for label, line in scheduler_rows(self.summary["schedulers"]))
        latencies = latencies_of(self.summary)
        return heading(title_of(self.summary)) + facts + latencies + listed(self.summary["warnings"])


def replicate(
    scenario: Scenario,
    seeds: int,
    *,
    jobs: int = 1,
    out: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Replications:
    """Run the scenario under `seeds` seeds, its own and those after it, on `jobs` cores (-1: all), and pool the runs.

    Where neither the requests nor what becomes of drafts depends on the seed, one run says all. The folder `out` gets
    `replications.json`, the summary, and a results directory of each run, `seed-N`; those of another scenario, or of
    seeds that are not among these, are replaced only if `force`.

    Raises:
        InputError: whatever is wrong in the input.
        StalledError: the policy deadlocked.
        KeyboardInterrupt: Ctrl-C ended one of the runs early.
    """
    prepared = prepare(scenario)
    vary, notes = depends_on_seed(scenario, prepared.table), []
    if not vary and seeds > 1:
        drawing = draws_acceptance(prepared.scenario)
        seeds = seeds if drawing else 1
        notes.append(Note("requests_fixed", _FIXED + (_DRAFTS if drawing else _ONE)))
    numbers = tuple(range(scenario.seed, scenario.seed + seeds))
    folders = [None if out is None else out / f"seed-{number}" for number in numbers]
    if out is not None:
        _check_folder(out, scenario, [folder for folder in folders if folder is not None], force)
    tasks = [(replace(scenario, seed=number), folder) for number, folder in zip(numbers, folders, strict=True)]
    runs = in_parallel(_attempt, tasks, jobs, progress)
    summary = pooled_summary(prepared.scenario, numbers, runs, notes, vary)
    if out is not None:
        _write(out, summary, [folder for folder in folders if folder is not None])
    return Replications(scenario, numbers, summary)


_FIXED = "the requests are the same under every seed, as those of a trace are: "
_ONE = "it runs once, and there are no intervals over runs"
_DRAFTS = "the runs differ in what becomes of drafts alone, so that there are no intervals over them"


def _attempt(scenario: Scenario, folder: Path | None) -> Replication:
    finished = execute(prepare(scenario))
    if not finished.record.complete:
        raise KeyboardInterrupt
    if folder is not None:
        finished.save(folder, force=True)  # `_check_folder` has looked
    return replication_of(finished.record, finished.scenario, finished.summary)


def _check_folder(out: Path, scenario: Scenario, folders: list[Path], force: bool) -> None:
    """Verify, before anything is simulated, that `out` holds nothing but earlier replications, and, unless `force`,
    of the same scenario and no other seeds.

    Raises:
        InputError: it does not.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; replications need a folder")
    for entry in sorted(out.iterdir()) if out.is_dir() else ():
        if entry.name != DOCUMENT and not _FOLDER.fullmatch(entry.name):
            raise InputError(f"{out}: holds {entry.name}, which is no result of replications; choose another folder")
        if entry.name != DOCUMENT and entry not in folders and not force:
            raise InputError(f"{out}: holds results of {entry.name}, which is not among these seeds; {REPLACE}")
        if entry.name != DOCUMENT and entry not in folders:
            check_target(entry)
    for folder in folders:
        check_target(folder)
        if not force:
            check_same_scenario(folder, scenario)


def _write(out: Path, summary: dict[str, Any], folders: list[Path]) -> None:
    """The summary beside the runs, whose results directories are there by now; those of other seeds go."""
    try:
        for entry in sorted(out.iterdir()):
            if entry.is_dir() and entry not in folders:
                shutil.rmtree(entry)
        text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
        (out / DOCUMENT).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out}: the replications could not be written: {error.strerror or error}") from error
