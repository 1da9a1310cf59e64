"""The runs of a comparison: every design under every seed, in parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simulator.common.notes import Note
from simulator.comparison.decoding import BUDGETS, decodings_of
from simulator.comparison.designs import Design, baseline_of, differences_between, prepare_all
from simulator.comparison.differences import NO_DIFFERENCES, AllowedDifferences
from simulator.comparison.folders import check_folder, folder_of
from simulator.comparison.notes import notes_after, notes_on
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import Sample, sample_of
from simulator.deployment.acceptance import draws_acceptance
from simulator.errors import InputError
from simulator.study.prepare import Prepared, prepare
from simulator.study.run import execute
from simulator.study.seeds import SeedOptions, depends_on_seed, in_parallel


def compare(
    designs: Sequence[Design],
    options: SeedOptions,
    *,
    baseline: str | None = None,
    allowed: AllowedDifferences = NO_DIFFERENCES,
) -> Comparison:
    """Simulate designs over the same requests.

    Request i under seed s is the same for all designs. If neither the requests nor the draws of accepted drafts depend
    on the seed, one seed is simulated. `baseline` is the name of a design, by default the first one. The folder
    `options.out` gets the results directory of each design under the first seed; `files.write_comparison` writes
    the other files.

    Raises:
        InputError: a scenario has a mistake in it, or the designs differ in more than is allowed.
        StalledError: a scheduling policy deadlocked.
        KeyboardInterrupt: Ctrl-C ended one of the runs early.
    """
    baseline_index = baseline_of(designs, baseline)
    prepared = prepare_all(designs, allowed)
    decodings = decodings_of(designs, prepared) if allowed.decoding else None
    differences = differences_between(designs, prepared, allowed)
    notes = notes_on(designs, prepared, decodings, differences)
    if options.seeds > 1 and not _depend_on_seed(designs, prepared):
        drawing = any(draws_acceptance(design.scenario) for design in designs)
        options = options if drawing else replace(options, seeds=1)
        notes.append(Note("requests_fixed", _FIXED + (_DRAFTS_DRAWN if drawing else _ONE_RUN)))
    if options.out is not None:
        check_folder(options.out, designs, options.force)
    first = designs[0].scenario.seed
    seeds = tuple(range(first, first + options.seeds))
    samples = in_parallel(_sample, _tasks(designs, seeds, options.out, allowed), options)
    by_design = tuple(tuple(samples[index :: len(designs)]) for index in range(len(designs)))
    if not allowed.workload:
        _check_requests(designs, by_design)
    notes += notes_after(designs, by_design)
    return Comparison(tuple(designs), baseline_index, seeds, by_design, tuple(notes), decodings, differences)


_FIXED = "the requests are the same under every seed, as those of a trace are: "
_ONE_RUN = "each design runs once, and intervals are those of means over its requests"
_DRAFTS_DRAWN = (
    "only the draws of accepted drafts differ between seeds, so that intervals show the effect of these draws, and not "
    "that of other requests"
)

#: The arguments of `_sample`.
_Task = tuple[Design, int, Path | None, tuple[str, ...]]


def _tasks(
    designs: Sequence[Design], seeds: Sequence[int], out: Path | None, allowed: AllowedDifferences
) -> list[_Task]:
    """Return a task for each seed and design; only runs under the first seed have a results directory."""
    ignored = BUDGETS if allowed.decoding else ()
    return [
        (design, seed, folder_of(design, out) if out is not None and seed == seeds[0] else None, ignored)
        for seed in seeds
        for design in designs
    ]


def _sample(design: Design, seed: int, folder: Path | None, ignored: tuple[str, ...]) -> Sample:
    scenario = replace(design.scenario, seed=seed)
    prepared = prepare(scenario)
    finished = execute(prepared)
    if not finished.record.complete:
        raise KeyboardInterrupt
    if folder is not None:
        finished.save(folder, force=True)  # `check_folder` has verified the folder
    return sample_of(finished, prepared.table, ignored)


def _depend_on_seed(designs: Sequence[Design], prepared: Sequence[Prepared]) -> bool:
    return any(depends_on_seed(design.scenario, one.table) for design, one in zip(designs, prepared, strict=True))


def _check_requests(designs: Sequence[Design], samples: Sequence[Sequence[Sample]]) -> None:
    """Verify that the designs serve the same requests under every seed, not only under the first one."""
    for design, own in zip(designs, samples, strict=True):
        if [sample.requests for sample in own] != [sample.requests for sample in samples[0]]:
            raise InputError(f"{design.name} and {designs[0].name} do not serve the same requests under every seed")
