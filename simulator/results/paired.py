"""Differences and ratios of designs: over seeds, over the requests of one run that both met, or of two runs apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.results.statistics import Distribution, Interval, ratio_interval, t975

Method = Literal["seeds", "requests", "unpaired", "none"]


@dataclass(frozen=True, slots=True)
class Paired:
    """A design's value minus the baseline's, or divided by it, and the 95% interval (None if nothing is known of it).

    `method` says what varies: `seeds` (Student's t over `count` independent workloads), `requests` (batch means over
    the `count` requests that both designs completed, in order of arrival), `unpaired` (two runs of other requests, of
    `count` observations together), or `none`.
    """

    value: float
    interval: Interval
    method: Method
    count: int


def over_seeds(values: Sequence[float], baseline: Sequence[float]) -> Paired:
    """The difference of a metric that each seed gives once for each of two designs, in the same order of seeds.

    Both designs meet the same requests under the same seed, so that the difference varies less than either value. A
    percentile of one run is one observation here.
    """
    differences = np.subtract(values, baseline)
    count, mean = len(differences), float(np.mean(differences))
    if count < 2:
        return Paired(mean, None, "none", count)
    half_width = t975(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Paired(mean, (mean - half_width, mean + half_width), "seeds", count)


def over_requests(values: NDArray[np.number], baseline: NDArray[np.number], trusted: bool) -> Paired:
    """The mean difference of a value that each request has once under each of two designs, in order of arrival.

    Neighbouring requests are alike, so that the interval comes from the means of 20 batches of them; it is None if
    there are too few, or the runs are not `trusted` to show one: `trust` says which are.
    """
    differences = np.subtract(values, baseline)
    if not len(differences):
        return Paired(math.nan, None, "none", 0)
    sample = Distribution.of_series(differences)
    return Paired(sample.mean(), sample.mean_interval() if trusted else None, "requests", sample.count)


class Estimate(NamedTuple):
    """A number of one run, its 95% interval, and how many observations it is of."""

    value: float
    low: float
    high: float
    observations: int


def unpaired(estimate: Estimate, baseline: Estimate) -> Paired:
    """The difference of two independent estimates.

    Its interval recovers the variances from theirs (MOVER: Zou and Donner, Statistics in Medicine 27, 2008), so that it
    is right for percentiles, whose intervals are not symmetric, too.
    """
    difference = estimate.value - baseline.value
    down = math.hypot(estimate.value - estimate.low, baseline.high - baseline.value)
    up = math.hypot(estimate.high - estimate.value, baseline.value - baseline.low)
    count = estimate.observations + baseline.observations
    return Paired(difference, (difference - down, difference + up), "unpaired", count)


def ratio_over_seeds(values: Sequence[float], baseline: Sequence[float]) -> Paired:
    """The ratio of a metric that each seed gives once for each of two designs: the geometric mean over seeds, so that
    it is the inverse of the ratio the other way round. All values are above 0."""
    logarithms = over_seeds(np.log(values).tolist(), np.log(baseline).tolist())
    interval = logarithms.interval
    bounds = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    return Paired(math.exp(logarithms.value), bounds, logarithms.method, logarithms.count)


def ratio_over_requests(values: NDArray[np.number], baseline: NDArray[np.number], trusted: bool) -> Paired:
    """The ratio of the means of a value that each request has once under each of two designs, in order of arrival;
    its interval as in `over_requests`. The baseline's mean is above 0."""
    ratio = float(np.sum(values) / np.sum(baseline))
    return Paired(ratio, ratio_interval(values, baseline) if trusted else None, "requests", len(values))
