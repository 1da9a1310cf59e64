"""Errors of predictions against measurements: by row, and summed up by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.validation.replay import Predicted
from simulator.validation.setting import Row

#: Group of the first rows of servers: their percentiles include the warm-up, and are summed up only here.
FIRST_STAGES = "first_stages"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured row and its prediction; `predicted` is None if it could not be simulated."""

    row: Row
    predicted: Predicted | None

    @property
    def left_out(self) -> str:
        """Reason for which the row's errors are not summed up; empty if they are."""
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
        """Yield (metric, measured, predicted) of the metrics that both have."""
        if self.predicted is None:
            return
        for name, measured in self.row.measured.items():
            if name in self.predicted.metrics:
                yield name, measured, self.predicted.metrics[name]


def summed_up(compared: Sequence[Compared]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the errors by group and metric.

    `{group: {metric: {unit, n, median_ape, mean_ape, p90_ape, bias, median_abs, p90_abs}}}`: percentages are numbers
    (3.5 is 3.5%), `bias` is the median of signed errors, the last two are in the metric's unit. The groups are `all`,
    each gpu, model and engine as written in the rows, and those that the rows name. The percentiles of first stages are
    only in the group `FIRST_STAGES`. Metrics that are given, and so not predicted, are only in `... (given)` of a group
    that their rows name.
    """
    values: dict[str, dict[str, list[tuple[float, float]]]] = {ALL: {}}
    for entry in compared:
        if entry.left_out:
            continue
        for name, measured, predicted in entry.pairs():
            if measured > 0:
                for group in dict.fromkeys(_groups(entry.row, name)):
                    values.setdefault(group, {}).setdefault(name, []).append((measured, predicted))
    return {
        group: {name: {"unit": unit_of(name)} | _errors(pairs) for name, pairs in of.items()}
        for group, of in values.items()
    }


def _groups(row: Row, metric: str) -> list[str]:
    """Return the groups in which the error of a row's metric is summed up."""
    if metric in row.given:
        return [f"{group} (given)" for group in row.groups]
    if row.stage == 0 and row.staged and _is_percentile(metric):
        return [FIRST_STAGES]
    return [ALL, *row.labels.values(), *row.groups]


def named_groups(compared: Sequence[Compared]) -> list[str]:
    """Return the groups that the rows name, each followed by its group of given metrics, in the rows' order."""
    names = [group for entry in compared for group in entry.row.groups]
    return [name for group in dict.fromkeys(names) for name in (group, f"{group} (given)")]


def unit_of(metric: str) -> str:
    """Return the unit of a metric: ms, a rate, or none."""
    if metric.endswith("_ms"):
        return "ms"
    return {"req_per_s": "1/s"}.get(metric, "tok/s" if metric.endswith("_tok_s") else "")


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
        "median_abs": np.median(np.abs(predicted - measured)),
        "p90_abs": np.quantile(np.abs(predicted - measured), 0.9),
    }
    return {"n": len(signed)} | {name: _rounded(float(value)) for name, value in values.items()}


def _rounded(value: float) -> float:
    """Return the value with six digits; 0 if it is only a rounding error."""
    return 0.0 if abs(value) < 1e-9 else float(f"{value:.6g}")


def overload_counts(compared: Sequence[Compared]) -> dict[str, int]:
    """Return the number of overloaded rows, of other rows, and of those in each that were predicted to overload.

    Rows with a note are not counted, unless the note is about the overload.
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
