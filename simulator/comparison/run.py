"""Comparing: every design under every seed, side by side on several cores, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulator.common.notes import Note
from simulator.comparison.decoding import BUDGETS, mixed
from simulator.comparison.designs import Design, baseline_of, found_different, load_designs, prepare_all
from simulator.comparison.different import NOTHING, Accepted
from simulator.comparison.folders import check_folder, folder_of
from simulator.comparison.notes import notes_after, notes_on
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import Sample, sample_of
from simulator.deployment.acceptance import draws_acceptance
from simulator.errors import InputError
from simulator.scenario import Overrides, Source
from simulator.study.run import Prepared, execute, prepare
from simulator.study.seeds import Progress, depends_on_seed, in_parallel


def compare(
    scenarios: Sequence[Source],
    overrides: Overrides = (),
    *,
    baseline: str | None = None,
    seeds: int = 5,
    trace: str | Path | None = None,
    accepted: Accepted = NOTHING,
    jobs: int = 1,
    out: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Run scenarios, given as `scenario.load_scenario` takes them, over the same requests.

    Each runs under `seeds` seeds, the scenarios' own and those after it, so that request i of seed s is the same in all
    of them; under one, if neither the requests nor what becomes of drafts depends on it. `baseline` is the name of a
    design (the first one), `accepted` what may differ beside the deployments, `jobs` the number of processes (-1: all
    cores). The folder `out` gets a results directory of each design under the first seed, in the place of other
    scenarios' only if `force`; `files.write_comparison` adds the rest.

    Raises:
        InputError: whatever is wrong in a scenario, or they differ in more than is accepted.
        StalledError: a policy deadlocked.
        KeyboardInterrupt: Ctrl-C ended one of the runs early.
    """
    designs = load_designs(scenarios, overrides, trace, accepted=accepted)
    chosen = baseline_of(designs, baseline)
    prepared = prepare_all(designs, accepted)
    decodings = mixed([design.scenario for design in designs], [one.table for one in prepared], accepted.decoding)
    different = found_different(designs, prepared, accepted)
    notes = notes_on(designs, prepared, decodings, different)
    first = designs[0].scenario.seed
    if seeds > 1 and not _depend_on_seed(designs, prepared):
        drawing = any(draws_acceptance(design.scenario) for design in designs)
        seeds = seeds if drawing else 1
        notes.append(Note("requests_fixed", _FIXED + (_DRAFTS_DRAWN if drawing else _ONE_RUN)))
    numbers = tuple(range(first, first + seeds))
    if out is not None:
        check_folder(out, designs, force)
    ignored = BUDGETS if accepted.decoding else ()
    tasks = [
        (design, seed, folder_of(design, out) if out is not None and seed == first else None, ignored)
        for seed in numbers
        for design in designs
    ]
    samples = in_parallel(_attempt, tasks, jobs, progress)
    by_design = tuple(tuple(samples[at :: len(designs)]) for at in range(len(designs)))
    if not accepted.workload:
        _check_requests(designs, by_design)
    notes += notes_after(designs, by_design)
    return Comparison(designs, chosen, numbers, by_design, tuple(notes), decodings, different)


_FIXED = "the requests are the same under every seed, as those of a trace are: "
_ONE_RUN = "each design runs once, and intervals are those of means over its requests"
_DRAFTS_DRAWN = (
    "seeds differ in what becomes of drafts alone, so that intervals say how much that chance moves, and nothing of "
    "other requests"
)


def _attempt(design: Design, seed: int, folder: Path | None, ignored: tuple[str, ...]) -> Sample:
    scenario = replace(design.scenario, seed=seed)
    prepared = prepare(scenario)
    finished = execute(prepared)
    if not finished.record.complete:
        raise KeyboardInterrupt
    if folder is not None:
        finished.save(folder, force=True)  # `check_folder` has looked
    return sample_of(finished, prepared.table, ignored)


def _depend_on_seed(designs: Sequence[Design], prepared: Sequence[Prepared]) -> bool:
    return any(depends_on_seed(design.scenario, one.table) for design, one in zip(designs, prepared, strict=True))


def _check_requests(designs: Sequence[Design], samples: Sequence[Sequence[Sample]]) -> None:
    """What was verified for the first seed holds for each of them."""
    for design, own in zip(designs, samples, strict=True):
        if [one.requests for one in own] != [one.requests for one in samples[0]]:
            raise InputError(f"{design.name} and {designs[0].name} do not serve the same requests under every seed")
