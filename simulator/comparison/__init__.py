"""Comparison of designs: several scenarios simulated over the same requests, and the differences between their results.

`load_designs` reads the scenarios and `compare` runs them; `document_of` returns the result that
`servesim compare --json` prints; `latency_figure` and `attribution_figure` draw it.
"""

from __future__ import annotations

from simulator.comparison.designs import Design, load_designs
from simulator.comparison.document import document_of
from simulator.comparison.files import attribution_figure, latency_figure
from simulator.comparison.outcome import Comparison
from simulator.comparison.run import compare

__all__ = [
    "Comparison",
    "Design",
    "attribution_figure",
    "compare",
    "document_of",
    "latency_figure",
    "load_designs",
]
