"""Temporary overload: bursts with a load above capacity in a run whose mean load is below it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.results.record import RunRecord
from simulator.results.saturation import Load

#: Numbers of windows into which the time of arrivals is cut: few for long bursts, many for short ones.
_WINDOWS = (20, 100, 500)
#: The fewest requests of a window that can be a burst.
_FEWEST = 20
#: The standard errors, for independent arrivals and sizes, by which a window's load must exceed capacity.
_ERRORS = 3.0
#: The least share of requests in such windows, and the least ratio of their TTFT to that of the others.
_SHARE, _SLOWER = 0.01, 2.0


@dataclass(frozen=True, slots=True)
class Bursts:
    """The windows of `window_s` seconds with a load above capacity.

    `windows` is their number, `of` the number of all windows, `peak` the highest load, and `share` the share of
    requests that arrived in them. `ttft_ns` is the median TTFT of these requests, `other_ttft_ns` that of the others.
    """

    window_s: float
    windows: int
    of: int
    peak: float
    share: float
    ttft_ns: float
    other_ttft_ns: float


def bursts(record: RunRecord, load: Load) -> Bursts | None:
    """Return the bursts at the window length at which they include the most requests; None if there are none."""
    found = [each for count in _WINDOWS if (each := _bursts_in_windows(record, load, count)) is not None]
    return max(found, key=lambda each: each.share, default=None)


def _bursts_in_windows(record: RunRecord, load: Load, parts: int) -> Bursts | None:
    arrivals, work_ns = load.arrivals_ns, load.work_ns
    start, span = arrivals[0], float(arrivals[-1] - arrivals[0]) + 1
    window = np.minimum((arrivals - start) * (parts / span), parts - 1).astype(np.int64)
    counts = np.bincount(window, minlength=parts)
    loads = np.bincount(window, work_ns, parts) * (parts / span)
    mean = float(work_ns.mean())
    spread = 1 + (float(work_ns.std()) / mean) ** 2 if mean else 0.0
    over = (counts >= _FEWEST) & (loads > 1 + _ERRORS * np.sqrt(spread / np.maximum(counts, 1)))
    share = float(counts[over].sum()) / len(arrivals)
    if share < _SHARE:
        return None
    requests = record.requests
    rows = load.rows[requests.first_token_ns[load.rows] >= 0]
    within = over[np.minimum((requests.arrival_ns[rows] - start) * (parts / span), parts - 1).astype(np.int64)]
    ttft = (requests.first_token_ns - requests.arrival_ns)[rows]
    slow = float(np.median(ttft[within])) if within.any() else math.inf
    rest = float(np.median(ttft[~within])) if not within.all() else 0.0
    if slow < _SLOWER * rest:
        return None
    return Bursts(span / parts / 1e9, int(over.sum()), parts, float(loads.max()), share, slow, rest)
