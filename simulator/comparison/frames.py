"""A comparison as pandas data frames and as HTML, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from simulator.common.console import short
from simulator.common.html import heading, listed, paragraph, table
from simulator.comparison.document import compared_metrics
from simulator.comparison.report import different_lines, engine_lines

if TYPE_CHECKING:
    from simulator.comparison.outcome import Comparison

Document = dict[str, Any]


def metrics_frame(document: Document) -> pd.DataFrame:
    """Return the median over seeds of each metric: one row per metric, one column per design."""
    medians = {
        design: {name: spread["median"] for name, spread in found.items()}
        for design, found in document["metrics"].items()
    }
    return pd.DataFrame(medians).rename_axis("metric")


def differences_frame(document: Document) -> pd.DataFrame:
    """Return one row per design and metric: its difference from the baseline, with the bounds of the 95% interval."""
    rows = []
    for entry in document["paired"]:
        low, high = entry["ci95"] or (float("nan"), float("nan"))
        rows.append({name: value for name, value in entry.items() if name != "ci95"} | {"low": low, "high": high})
    columns = ["design", "metric", "difference", "low", "high", "relative", "method", "count"]
    return pd.DataFrame(rows, columns=columns)


def html_of(comparison: Comparison) -> str:
    """Return the allowed differences, the values of each design (medians over seeds) and the warnings as HTML."""
    document = comparison.document
    found = document["metrics"]
    rows = []
    for metric in compared_metrics(comparison):
        spreads = [values.get(metric.name) for values in found.values()]
        rows.append((metric.label, *("-" if one is None else short(one["median"]) for one in spreads)))
    shown = table("median over seeds" if len(comparison.seeds) > 1 else "", list(found), rows)
    stated = "".join(map(paragraph, (*engine_lines(document), *different_lines(document))))
    return heading(repr(comparison)) + stated + shown + listed(document["warnings"])
