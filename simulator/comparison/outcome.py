"""What a comparison found, and the forms in which it can be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simulator.common.notes import Note
from simulator.comparison.decoding import Decoding
from simulator.comparison.designs import Design
from simulator.comparison.different import Difference
from simulator.comparison.sample import Sample
from simulator.deployment.acceptance import draws_acceptance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
    different: Difference | None = None

    def same_requests(self, at: int) -> bool:
        """Whether design `at` and the baseline served the same requests under every seed."""
        ours, theirs = self.samples[at], self.samples[self.baseline]
        return [sample.requests for sample in ours] == [sample.requests for sample in theirs]

    def pairs(self, at: int) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """The runs of design `at` and of the baseline under the same seeds: under the first alone, where neither their
        requests nor what becomes of their drafts differs by seed, since others would only repeat it."""
        both = at, self.baseline
        fixed = all(len({sample.requests for sample in self.samples[each]}) == 1 for each in both)
        if fixed and not any(draws_acceptance(self.designs[each].scenario) for each in both):
            return self.samples[at][:1], self.samples[self.baseline][:1]
        return self.samples[at], self.samples[self.baseline]

    @cached_property
    def document(self) -> dict[str, Any]:
        """Everything that the comparison says, as `servesim compare --json` prints it."""
        from simulator.comparison.document import document_of

        return document_of(self)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The median over seeds of each metric: one row a metric, one column a design."""
        from simulator.comparison.frames import metrics_frame

        return metrics_frame(self.document)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """Each design minus the baseline: one row a design and metric, with `difference`, its 95% interval `low` and
        `high` (NaN if nothing is known of it), `relative`, `method` and `count`."""
        from simulator.comparison.frames import differences_frame

        return differences_frame(self.document)

    def latency_figure(self) -> Figure:
        """The distributions of TTFT and ITL by design."""
        from simulator.comparison.files import latency_picture

        return latency_picture(self)

    def attribution_figure(self) -> Figure:
        """Where the time of requests goes, by design."""
        from simulator.comparison.files import attribution_picture

        return attribution_picture(self.document)

    def __repr__(self) -> str:
        names = [f"{design.name}{' (baseline)' * (at == self.baseline)}" for at, design in enumerate(self.designs)]
        return f"Comparison({', '.join(names)}; {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)})"

    def _repr_html_(self) -> str:
        """The table of values that `servesim compare` prints, and the warnings."""
        from simulator.comparison.frames import html_of

        return html_of(self)
