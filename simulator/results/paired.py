"""Differences and ratios between designs: over seeds, over requests that both completed, or of two unpaired runs."""

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
    """A design's value minus the baseline's, or divided by it, with its 95% interval (None if it is unknown).

    `method` is the source of the interval: `seeds` (Student's t over `count` independent workloads), `requests` (batch
    means over the `count` requests that both designs completed, in order of arrival), `unpaired` (two runs over
    different requests, with `count` observations together), or `none`.
    """

    value: float
    interval: Interval
    method: Method
    count: int


def over_seeds(values: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Return the mean difference of a metric with one value per seed and design, in the same order of seeds.

    Both designs serve the same requests under the same seed, so that the difference varies less than each value. A
    percentile of one run counts as one observation.
    """
    differences = np.subtract(values, baseline)
    count, mean = len(differences), float(np.mean(differences))
    if count < 2:
        return Paired(mean, None, "none", count)
    half_width = t975(count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Paired(mean, (mean - half_width, mean + half_width), "seeds", count)


def over_requests(values: NDArray[np.number], baseline: NDArray[np.number], show_interval: bool) -> Paired:
    """Return the mean difference of a metric with one value per request and design, in order of arrival.

    Successive requests are correlated, so that the interval comes from the means of 20 batches. It is None for small
    samples, and unless `show_interval`.
    """
    differences = np.subtract(values, baseline)
    if not len(differences):
        return Paired(math.nan, None, "none", 0)
    sample = Distribution.of_series(differences)
    return Paired(sample.mean(), sample.mean_interval() if show_interval else None, "requests", sample.count)


class Estimate(NamedTuple):
    """An estimate from one run, its 95% interval, and its number of observations."""

    value: float
    low: float
    high: float
    observations: int


def unpaired(estimate: Estimate, baseline: Estimate) -> Paired:
    """Return the difference of two independent estimates.

    Its interval recovers the variances from theirs (MOVER: Zou and Donner, Statistics in Medicine 27, 2008), which is
    valid for the asymmetric intervals of percentiles as well.
    """
    difference = estimate.value - baseline.value
    down = math.hypot(estimate.value - estimate.low, baseline.high - baseline.value)
    up = math.hypot(estimate.high - estimate.value, baseline.value - baseline.low)
    count = estimate.observations + baseline.observations
    return Paired(difference, (difference - down, difference + up), "unpaired", count)


def ratio_over_seeds(values: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Return the geometric mean over seeds of the ratio of a metric, whose values must be above 0.

    The ratio of the designs in the other order is its inverse.
    """
    logarithms = over_seeds(np.log(values).tolist(), np.log(baseline).tolist())
    interval = logarithms.interval
    bounds = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    return Paired(math.exp(logarithms.value), bounds, logarithms.method, logarithms.count)


def ratio_over_requests(values: NDArray[np.number], baseline: NDArray[np.number], show_interval: bool) -> Paired:
    """Return the ratio of the means of a metric with one value per request and design, in order of arrival.

    The interval is as in `over_requests`. The baseline's mean must be above 0.
    """
    ratio = float(np.sum(values) / np.sum(baseline))
    return Paired(ratio, ratio_interval(values, baseline) if show_interval else None, "requests", len(values))
