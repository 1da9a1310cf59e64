"""The result of a comparison, as a document, data frames and figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simulator.common.notes import Note
from simulator.comparison.decoding import Decoding
from simulator.comparison.designs import Design
from simulator.comparison.differences import Differences
from simulator.comparison.sample import Sample
from simulator.deployment.acceptance import draws_acceptance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """The finished runs of several designs: `samples[d][s]` is the run of design d under seed s.

    `baseline` is the position of the design to which the others are compared. `decodings` has the decoding of each
    design, and `differences` the differences other than the deployment, where there are any and they are allowed.
    """

    designs: tuple[Design, ...]
    baseline: int
    seeds: tuple[int, ...]
    samples: tuple[tuple[Sample, ...], ...]
    notes: tuple[Note, ...]
    decodings: dict[str, Decoding] | None
    differing: Differences | None = None

    def same_requests(self, at: int) -> bool:
        """Return whether design `at` and the baseline served the same requests under every seed."""
        ours, theirs = self.samples[at], self.samples[self.baseline]
        return [sample.requests for sample in ours] == [sample.requests for sample in theirs]

    def pairs(self, at: int) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
        """Return the runs of design `at` and of the baseline under the same seeds.

        They are only those under the first seed if neither requests nor accepted drafts depend on the seed, since the
        runs under other seeds repeat it.
        """
        both = at, self.baseline
        fixed = all(len({sample.requests for sample in self.samples[each]}) == 1 for each in both)
        if fixed and not any(draws_acceptance(self.designs[each].scenario) for each in both):
            return self.samples[at][:1], self.samples[self.baseline][:1]
        return self.samples[at], self.samples[self.baseline]

    @cached_property
    def document(self) -> dict[str, Any]:
        """The result of the comparison, as `servesim compare --json` prints it."""
        from simulator.comparison.document import document_of

        return document_of(self)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The median over seeds of each metric: one row per metric, one column per design."""
        from simulator.comparison.frames import metrics_frame

        return metrics_frame(self.document)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """The differences from the baseline, one row per design and metric.

        Columns: `difference`, its 95% interval from `low` to `high` (NaN without one), `relative`, `method` and
        `count`.
        """
        from simulator.comparison.frames import differences_frame

        return differences_frame(self.document)

    def latency_figure(self) -> Figure:
        """Draw the distributions of TTFT and ITL by design."""
        from simulator.comparison.files import latency_figure

        return latency_figure(self)

    def attribution_figure(self) -> Figure:
        """Draw the parts of the requests' time by design."""
        from simulator.comparison.files import attribution_figure

        return attribution_figure(self.document)

    def __repr__(self) -> str:
        names = [f"{design.name}{' (baseline)' * (at == self.baseline)}" for at, design in enumerate(self.designs)]
        return f"Comparison({', '.join(names)}; {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)})"

    def _repr_html_(self) -> str:
        """Return the table of values that `servesim compare` prints, and the warnings, as HTML."""
        from simulator.comparison.frames import html_of

        return html_of(self)
