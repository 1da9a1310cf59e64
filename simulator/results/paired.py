"""Differences between designs that met the same requests: over seeds, or over the requests of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.results.statistics import Distribution, Interval

Method = Literal["seeds", "requests", "none"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A design's value minus the baseline's: their mean, and its 95% interval (None if nothing is known of it).

    `method` says what varies: `seeds` (Student's t over `count` independent workloads), `requests` (batch means over
    the `count` requests that both designs completed, in order of arrival), or `none`.
    """

    value: float
    interval: Interval
    method: Method
    count: int


def over_seeds(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The difference of a metric that each seed gives once for each of two designs, in the same order of seeds.

    Both designs meet the same requests under the same seed, so that the difference varies less than either value. A
    percentile of one run is one observation here.
    """
    differences = np.subtract(values, baseline)
    count, mean = len(differences), float(np.mean(differences))
    if count < 2:
        return Difference(mean, None, "none", count)
    half_width = t975(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Difference(mean, (mean - half_width, mean + half_width), "seeds", count)


def over_requests(values: NDArray[np.number], baseline: NDArray[np.number]) -> Difference:
    """The mean difference of a value that each request has once under each of two designs, in order of arrival.

    Neighbouring requests are alike, so that the interval comes from the means of 20 batches of them; it is None if
    there are too few.
    """
    differences = np.subtract(values, baseline)
    if not len(differences):
        return Difference(math.nan, None, "none", 0)
    sample = Distribution.of_series(differences)
    return Difference(sample.mean(), sample.mean_interval(), "requests", sample.count)


def t975(degrees: int) -> float:
    """Student's t at 97.5%."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))
