"""The files of a comparison beside the results of its designs: `compare.json` and two figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.comparison.folders import ATTRIBUTION, DOCUMENT, LATENCY
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import EDGES_MS
from simulator.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_comparison(out: Path, document: dict[str, Any], comparison: Comparison) -> None:
    """Write the document and the figures; `run.compare` writes the results directories.

    Raises:
        InputError: the disk is full or fails.
    """
    from simulator.results.plots import save

    try:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        (out / DOCUMENT).write_text(text + "\n", encoding="utf-8")
        save(latency_figure(comparison), out / LATENCY)
        save(attribution_figure(document), out / ATTRIBUTION)
    except OSError as error:
        raise InputError(f"{out}: the comparison could not be written: {error.strerror or error}") from error


def latency_figure(comparison: Comparison) -> Figure:
    """Draw the distributions of TTFT and ITL by design, over the requests and tokens of all seeds."""
    from simulator.results.compare_plots import draw_distributions

    names = [design.name for design in comparison.designs]
    by_design = dict(zip(names, comparison.samples, strict=True))
    ttft = {name: np.sum([one.ttft for one in own], axis=0) for name, own in by_design.items()}
    itl = {name: np.sum([one.itl for one in own], axis=0) for name, own in by_design.items()}
    seeds = len(comparison.seeds)
    title = (
        "all requests and tokens" + (f" of {seeds} seeds" if seeds > 1 else "") + _differences_text(comparison.document)
    )
    return draw_distributions(EDGES_MS, ttft, itl, title)


def attribution_figure(document: dict[str, Any]) -> Figure:
    """Draw the parts of the requests' time, by design."""
    from simulator.results.compare_plots import draw_attribution

    title = "mean time spent: all requests, and requests around percentiles of E2E" + _differences_text(document)
    return draw_attribution(document["attribution"], title)


def _differences_text(document: dict[str, Any]) -> str:
    """Return the kinds of allowed differences, for a title."""
    found = document.get("different")
    return "" if found is None else f"; not of the same {' and '.join(found['what'])}"
