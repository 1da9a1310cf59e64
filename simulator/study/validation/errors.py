"""How far predictions are from measurements: by row, and summed up by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.study.validation.replay import Predicted
from simulator.study.validation.setting import Row

#: Rows that came first on a server: their percentiles hold its warm-up, and are summed up here alone.
FIRST_STAGES = "first_stages"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured row and what the simulation says of it; `predicted` is None if it could not be simulated."""

    row: Row
    predicted: Predicted | None

    @property
    def left_out(self) -> str:
        """Why the row's errors are not summed up; empty if they are."""
        if self.predicted is None:
            return f"not simulated: {self.row.reason}"
        if self.row.overloaded:
            return "overloaded: judged by whether that is predicted"
        if self.row.note:
            return f"noted: {self.row.note}"
        if self.predicted.refused and self.predicted.metrics:
            return f"{self.predicted.refused} requests were refused, as longer than the context or the KV pool"
        if not self.predicted.metrics:
            return "no request finished in the simulation (refused, as longer than the context or the KV pool)"
        if self.row.by_sign:
            return f"judged by sign and order: {self.row.by_sign}"
        return ""

    def pairs(self) -> Iterator[tuple[str, float, float]]:
        """(metric, measured, predicted) of what both have."""
        if self.predicted is None:
            return
        for name, measured in self.row.measured.items():
            if name in self.predicted.metrics:
                yield name, measured, self.predicted.metrics[name]


def summed_up(compared: Sequence[Compared]) -> dict[str, dict[str, dict[str, Any]]]:
    """Errors by group and metric: `{group: {metric: {n, median_ape, mean_ape, p90_ape, bias, median_abs_ms}}}`.

    Percentages are numbers (3.5 is 3.5%); `bias` is the median signed error; `median_abs_ms` is in the metric's own
    unit where that is no time. The groups are `all`, each gpu, model and engine as written in the rows, and the
    percentiles of first stages, which the other groups leave out.
    """
    values: dict[str, dict[str, list[tuple[float, float]]]] = {ALL: {}}
    for entry in compared:
        if entry.left_out:
            continue
        warming = entry.row.stage == 0 and entry.row.staged
        for name, measured, predicted in entry.pairs():
            groups = [ALL, *entry.row.labels.values()]
            if warming and _is_percentile(name):
                groups = [FIRST_STAGES]
            if measured <= 0 or name in entry.row.given:  # has no error of its own; it stands in the table of rows
                continue
            for group in dict.fromkeys(groups):
                values.setdefault(group, {}).setdefault(name, []).append((measured, predicted))
    return {group: {name: _errors(pairs) for name, pairs in of.items()} for group, of in values.items()}


def _is_percentile(name: str) -> bool:
    return "_p" in name and name.endswith("_ms")


def _errors(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    measured, predicted = np.array(pairs, float).T
    signed = 100 * (predicted / measured - 1)
    size = np.abs(signed)
    values = {
        "median_ape": np.median(size),
        "mean_ape": size.mean(),
        "p90_ape": np.quantile(size, 0.9),
        "bias": np.median(signed),
        "median_abs_ms": np.median(np.abs(predicted - measured)),
    }
    return {"n": len(signed)} | {name: float(f"{value:.6g}") for name, value in values.items()}


def overload_counts(compared: Sequence[Compared]) -> dict[str, int]:
    """How many overloaded rows were predicted to overload, and how many others.

    Noted rows are not counted, unless the note says that the overload is what to look at.
    """
    counts = {"overloaded": 0, "predicted_to_overload": 0, "not_overloaded": 0, "wrongly_predicted_to_overload": 0}
    for entry in compared:
        if entry.predicted is None or (entry.row.note and not entry.row.note.startswith("overload flag")):
            continue
        if entry.row.overloaded:
            counts["overloaded"] += 1
            counts["predicted_to_overload"] += entry.predicted.overloaded
        else:
            counts["not_overloaded"] += 1
            counts["wrongly_predicted_to_overload"] += entry.predicted.overloaded
    return counts
