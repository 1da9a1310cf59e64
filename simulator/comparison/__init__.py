"""Designs side by side: the same requests through several scenarios, and what differs.

`compare` runs them; `document_of` sums them up as `servesim compare --json` prints it; `latency_picture` and
`attribution_picture` draw them.
"""

from __future__ import annotations

from simulator.comparison.designs import Design, load_designs
from simulator.comparison.document import document_of
from simulator.comparison.files import attribution_picture, latency_picture
from simulator.comparison.outcome import Comparison
from simulator.comparison.run import compare

__all__ = [
    "Comparison",
    "Design",
    "attribution_picture",
    "compare",
    "document_of",
    "latency_picture",
    "load_designs",
]
