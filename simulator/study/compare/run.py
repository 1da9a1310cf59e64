"""Comparing: every design under every seed, side by side on several cores, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblib import Parallel, delayed

from simulator.errors import InputError
from simulator.notes import Note
from simulator.scenario import Overrides, Source
from simulator.study.compare.decoding import BUDGETS, Decoding, mixed
from simulator.study.compare.designs import Design, baseline_of, load_designs, prepare_all
from simulator.study.compare.folders import check_folder, folder_of
from simulator.study.compare.notes import notes_after, notes_on
from simulator.study.compare.requests import difference
from simulator.study.compare.sample import Sample, sample_of
from simulator.study.run import Prepared, execute, prepare
from simulator.study.speculation import draws_acceptance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Told after each run how many are done.
Progress = Callable[[int], None]


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """Finished runs: `samples[d][s]` is design d under seed s, and `baseline` the position of the design to which the
    others are compared. `notes` are to be read before the numbers. `mixed` says what the answers of each design are, if
    they were accepted not to be the same."""

    designs: tuple[Design, ...]
    baseline: int
    seeds: tuple[int, ...]
    samples: tuple[tuple[Sample, ...], ...]
    notes: tuple[Note, ...]
    mixed: dict[str, Decoding] | None

    def pairs(self, at: int) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """The runs of design `at` and of the baseline under the same seeds: under the first alone, where neither their
        requests nor what becomes of their drafts differs by seed, since others would only repeat it."""
        both = at, self.baseline
        alike = len({sample.requests for sample in self.samples[at]}) == 1
        if alike and not any(draws_acceptance(self.designs[each].scenario) for each in both):
            return self.samples[at][:1], self.samples[self.baseline][:1]
        return self.samples[at], self.samples[self.baseline]

    @cached_property
    def document(self) -> dict[str, Any]:
        """Everything that the comparison says, as `servesim compare --json` prints it."""
        from simulator.study.compare.document import document_of

        return document_of(self)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The median over seeds of each metric: one row a metric, one column a design."""
        from simulator.study.compare.frames import metrics_frame

        return metrics_frame(self.document)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """Each design minus the baseline: one row a design and metric, with `difference`, its 95% interval `low` and
        `high` (NaN if nothing is known of it), `relative`, `method` and `count`."""
        from simulator.study.compare.frames import differences_frame

        return differences_frame(self.document)

    def latency_figure(self) -> Figure:
        """The distributions of TTFT and ITL by design."""
        from simulator.study.compare.files import latency_picture

        return latency_picture(self)

    def attribution_figure(self) -> Figure:
        """Where the time of requests goes, by design."""
        from simulator.study.compare.files import attribution_picture

        return attribution_picture(self.document)

    def __repr__(self) -> str:
        names = [f"{design.name}{' (baseline)' * (at == self.baseline)}" for at, design in enumerate(self.designs)]
        return f"Comparison({', '.join(names)}; {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)})"

    def _repr_html_(self) -> str:
        """The table of values that `servesim compare` prints, and the warnings."""
        from simulator.study.compare.frames import html_of

        return html_of(self)


def compare(
    scenarios: Sequence[Source],
    overrides: Overrides = (),
    *,
    baseline: str | None = None,
    seeds: int = 5,
    trace: str | Path | None = None,
    mixed_decoding: bool = False,
    jobs: int = 1,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run scenarios, given as `scenario.load_scenario` takes them, over the same requests.

    Each runs under `seeds` seeds, the scenarios' own and those after it, so that request i of seed s is the same in all
    of them; under one, if neither the requests nor what becomes of drafts depends on it. `baseline` is the name of a
    design (the first one), `jobs` the number of processes (-1: all cores). `mixed_decoding` accepts designs whose
    output budgets differ, or the laws of their outputs, which else is an error. The folder `out` gets a results
    directory of each design under the first seed; `files.write_comparison` adds the rest.

    Raises:
        InputError: whatever is wrong in a scenario, or they differ in more than their deployments.
        StalledError: a policy deadlocked.
        KeyboardInterrupt: Ctrl-C ended one of the runs early.
    """
    designs = load_designs(scenarios, overrides, trace, mixed_decoding=mixed_decoding)
    chosen = baseline_of(designs, baseline)
    prepared = prepare_all(designs, mixed_decoding=mixed_decoding)
    found = mixed([design.scenario for design in designs], [one.table for one in prepared])
    first = designs[0].scenario.seed
    notes = notes_on(designs, prepared, found)
    if seeds > 1 and not _depend_on_seed(designs[0], prepared[0]):
        drawing = any(draws_acceptance(design.scenario) for design in designs)
        seeds = seeds if drawing else 1
        notes.append(Note("requests_fixed", _FIXED + (_DRAFTS_DRAWN if drawing else _ONE_RUN)))
    numbers = tuple(range(first, first + seeds))
    if out is not None:
        check_folder(out, designs)
    tasks = [
        (design, seed, folder_of(design, out) if out is not None and seed == first else None)
        for seed in numbers
        for design in designs
    ]
    ignored = BUDGETS if mixed_decoding else ()
    done = Parallel(n_jobs=jobs, return_as="generator")(delayed(_attempt)(*task, ignored) for task in tasks)
    samples = list(_counted(done, progress))
    by_design = tuple(tuple(samples[at :: len(designs)]) for at in range(len(designs)))
    _check_requests(designs, by_design)
    notes += notes_after(designs, by_design)
    return Comparison(designs, chosen, numbers, by_design, tuple(notes), found)


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
        finished.save(folder)
    return sample_of(finished, prepared.table, ignored)


def _counted(samples: Iterable[Sample], progress: Progress | None) -> Iterator[Sample]:
    for done, sample in enumerate(samples, 1):
        if progress is not None:
            progress(done)
        yield sample


def _depend_on_seed(design: Design, prepared: Prepared) -> bool:
    """Whether another seed draws other requests."""
    if design.scenario.workload.trace is not None:
        return False
    other = prepare(replace(design.scenario, seed=design.scenario.seed + 1))
    return difference(prepared.table, other.table) is not None


def _check_requests(designs: Sequence[Design], samples: Sequence[Sequence[Sample]]) -> None:
    """What was verified for the first seed holds for each of them."""
    for design, own in zip(designs, samples, strict=True):
        if [one.requests for one in own] != [one.requests for one in samples[0]]:
            raise InputError(f"{design.name} and {designs[0].name} do not serve the same requests under every seed")
