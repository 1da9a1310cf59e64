"""What a comparison writes beside the results of its designs: `compare.json` and two pictures."""

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
    """Write the object and the pictures; `run.compare` wrote the results directories.

    Raises:
        InputError: the disk is full or fails.
    """
    from simulator.results.plots import save

    try:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        (out / DOCUMENT).write_text(text + "\n", encoding="utf-8")
        save(latency_picture(comparison), out / LATENCY)
        save(attribution_picture(document), out / ATTRIBUTION)
    except OSError as error:
        raise InputError(f"{out}: the comparison could not be written: {error.strerror or error}") from error


def latency_picture(comparison: Comparison) -> Figure:
    """The distributions of TTFT and ITL by design, over the requests and the tokens of all seeds."""
    from simulator.results.compare_plots import distributions_figure

    names = [design.name for design in comparison.designs]
    by_design = dict(zip(names, comparison.samples, strict=True))
    ttft = {name: np.sum([one.ttft for one in own], axis=0) for name, own in by_design.items()}
    itl = {name: np.sum([one.itl for one in own], axis=0) for name, own in by_design.items()}
    seeds = len(comparison.seeds)
    title = "all requests and tokens" + (f" of {seeds} seeds" if seeds > 1 else "") + _not_the_same(comparison.document)
    return distributions_figure(EDGES_MS, ttft, itl, title)


def attribution_picture(document: dict[str, Any]) -> Figure:
    """Where the time of requests goes, by design."""
    from simulator.results.compare_plots import attribution_figure

    title = "where the time goes: of all requests, and of those around percentiles of E2E" + _not_the_same(document)
    return attribution_figure(document["attribution"], title)


def _not_the_same(document: dict[str, Any]) -> str:
    """What was accepted to differ, for a title."""
    found = document.get("different")
    return "" if found is None else f"; not of the same {' and '.join(found['what'])}"
