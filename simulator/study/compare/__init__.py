"""Designs side by side: the same requests through several scenarios, and what differs."""

from __future__ import annotations

from simulator.study.compare.designs import Design, load_designs
from simulator.study.compare.run import Comparison, compare

__all__ = ["Comparison", "Design", "compare", "load_designs"]
