"""Quantiles and means with honest intervals, and the end of a warm-up, for observations that depend on each other.

Latencies of neighbouring requests are alike, so that n of them say less than n independent draws would. Intervals here
come from batches, which are nearly independent where single observations are not: 20 of one run, in order of time, or
the runs of several replications. Whether an interval may be shown at all is not decided here, but in `trust`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Batches in order of time: a compromise between long ones (independent) and many (a well-known variance).
BATCHES = 20
#: Two observations a batch. Of fewer, nothing is known about their dependence, and no interval is given.
SMALLEST_SAMPLE = 2 * BATCHES
#: Student's t at 97.5% for 1 to 19 degrees of freedom, and the normal law's.
_T975 = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024),
)
_Z975 = 1.959964

Interval = tuple[float, float] | None


def t975(degrees: int) -> float:
    """Student's t at 97.5%."""
    if degrees <= len(_T975):
        return _T975[degrees - 1]
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


class Distribution:
    """A weighted sample: a value of weight w stands for w equal observations.

    `values` ascend; `weights` are whole numbers above 0; `batch` is each value's batch, from 0: one of 20 in order of
    time, or its run, if the sample is pooled out of `replications` runs. Quantiles are those of the expanded sample
    under linear interpolation (numpy's default).
    """

    __slots__ = ("_batch", "_cumulative", "_replicated", "_sums", "_totals", "_worth", "count", "values", "weights")

    def __init__(
        self, values: NDArray[np.number], weights: Floats, batch: NDArray[np.integer], replications: int | None = None
    ) -> None:
        self.values = np.asarray(values, float)
        self.weights = weights
        self._batch = batch
        self._replicated = replications is not None
        self._cumulative = np.cumsum(weights)
        self.count = int(self._cumulative[-1]) if len(weights) else 0
        self._totals = np.bincount(batch, weights, replications or BATCHES)
        self._sums = np.bincount(batch, weights * self.values, replications or BATCHES)
        # Kish's effective number of observations: as many equal weights estimate a mean equally well. Sums here are
        # numpy's, not BLAS dot products, whose threads cost more processor time than they save.
        self._worth = self.count**2 / float(np.sum(weights * weights)) if self.count else 0.0

    @classmethod
    def of_series(cls, values: NDArray[np.number]) -> Distribution:
        """Observations of weight 1, given in order of time."""
        order = np.argsort(values)
        batch = (order * BATCHES // max(len(order), 1)).astype(np.uint8)
        return cls(values[order], np.ones(len(order)), batch)

    @classmethod
    def of_replications(cls, samples: Sequence[tuple[Floats, Floats]]) -> Distribution:
        """The values and weights of several runs, each a batch."""
        values = np.concatenate([values for values, _ in samples])
        weights = np.concatenate([weights for _, weights in samples])
        run = np.repeat(np.arange(len(samples), dtype=np.uint32), [len(values) for values, _ in samples])
        order = np.argsort(values, kind="stable")
        return cls(values[order], weights[order], run[order], len(samples))

    def mean(self) -> float:
        """The mean of the expanded sample."""
        return float(self._sums.sum()) / self.count

    def std(self) -> float:
        """The standard deviation of the expanded sample (over n, as load generators compute it)."""
        squares = self.values - self.mean()
        squares *= squares
        squares *= self.weights
        return math.sqrt(float(np.sum(squares)) / self.count)

    def quantile(self, p: float) -> float:
        """The p-quantile, 0 <= p <= 1, interpolated between the observations around rank 1 + (n - 1) p."""
        position = (self.count - 1) * p
        below = math.floor(position)
        part = position - below
        low, high = self.ranked(below + 1), self.ranked(min(below + 2, self.count))
        # As numpy rounds it: from the nearer of the two.
        return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)

    def ranked(self, rank: int) -> float:
        """The observation of this rank, 1 for the smallest."""
        return float(self.values[np.searchsorted(self._cumulative, rank - 0.5)])

    def share_within(self, limit: float) -> float:
        """The share of observations of at most `limit`."""
        at_most = int(np.searchsorted(self.values, limit, "right"))
        return float(self._cumulative[at_most - 1]) / self.count if at_most else 0.0

    def mean_interval(self, allowance: float = 1.0) -> Interval:
        """The mean's 95% interval from batch means and Student's t; None if the sample is too small for one.

        `allowance` is a factor of the variance that batches show, for what they cannot (see `trust`).
        """
        if not self._in_batches():
            return None
        mean, variance = _ratio(self._sums, self._totals)
        half_width = t975(len(self._totals) - 1) * math.sqrt(variance * allowance)
        return mean - half_width, mean + half_width

    def quantile_interval(self, p: float, allowance: float = 1.0) -> Interval:
        """The p-quantile's 95% interval: order statistics, at the ranks of the binomial law for as many
        independent draws as the sample is worth; None if it is worth too few. `allowance` as for the mean."""
        size = int(self.effective_size(p) / allowance)
        if not size:
            return None
        low, high = confidence_ranks(size, p)
        if low < 1 or high > size:
            return None
        scale = self.count / size
        return self.ranked(math.floor(low * scale)), self.ranked(math.ceil((high - 1) * scale) + 1)

    def effective_size(self, p: float) -> float:
        """How many independent draws locate the p-quantile q as well as this sample does; 0 if that is unknown.

        The share of observations above q has the variance p (1 - p) / n over n independent draws. Here it is estimated
        from batches, and enlarged: by Student's t for as many batches as the rarer side of q occurs in (a tail that
        was met in two batches was observed twice), and by (1 + r) / (1 - r) where neighbouring batches of one run are
        still alike (r, their correlation).
        """
        if not self._in_batches():
            return 0.0
        q = self.quantile(p)
        first = int(np.searchsorted(self.values, q, "right"))
        if first == len(self.values):  # nothing lies above q, so that the question is what reaches it
            first = int(np.searchsorted(self.values, q))
        above = np.bincount(self._batch[first:], self.weights[first:], len(self._totals))
        share, variance = _ratio(above, self._totals)
        if variance == 0.0:
            return self._worth
        met = int(min(np.count_nonzero(above), np.count_nonzero(above < self._totals)))
        if met < 2:
            return 0.0
        variance *= (t975(met - 1) / _Z975) ** 2
        if not self._replicated:
            variance *= _likeness(above / self._totals - share)
        return min(self._worth, share * (1 - share) / variance)

    def _in_batches(self) -> bool:
        return self.count >= SMALLEST_SAMPLE and bool(self._totals.all())


def _ratio(sums: NDArray[np.number], totals: NDArray[np.number]) -> tuple[float, float]:
    """The mean over all batches, and its variance: the ratio estimator, the plain one if batches weigh the same."""
    mean = float(sums.sum() / totals.sum())
    errors = (sums - mean * totals) / totals.sum()
    return mean, float(np.dot(errors, errors)) * len(totals) / (len(totals) - 1)


def _likeness(deviations: NDArray[np.number]) -> float:
    """The factor (1 + r) / (1 - r) by which a positive correlation r of neighbours enlarges the variance of a mean."""
    squares = float(np.dot(deviations, deviations))
    r = float(np.dot(deviations[1:], deviations[:-1])) / squares if squares else 0.0
    r = min(max(r, 0.0), 0.9)
    return (1 + r) / (1 - r)


def ratio_interval(above: NDArray[np.number], below: NDArray[np.number]) -> Interval:
    """The 95% interval of sum(above) / sum(below) over observations in order of time, from 20 batches of them and
    Student's t; None if they are too few."""
    batch = np.arange(len(below)) * BATCHES // max(len(below), 1)
    sums, totals = (np.bincount(batch, series, BATCHES) for series in (above, below))
    if len(below) < SMALLEST_SAMPLE or not totals.all():
        return None
    ratio, variance = _ratio(sums, totals)
    half_width = t975(BATCHES - 1) * math.sqrt(variance)
    return ratio - half_width, ratio + half_width


def confidence_ranks(n: int, p: float) -> tuple[int, int]:
    """Ranks (1 is the smallest) of the order statistics of n independent draws that enclose the p-quantile with 95%.

    They are the 2.5% and 97.5% quantiles of Binomial(n, p), the latter plus one. Rank 0 or n + 1: n is too small.
    """
    spread = math.sqrt(n * p * (1 - p))
    first = max(0, math.floor(n * p - 10 * spread - 10))  # what lies outside has a probability below 1e-20
    last = min(n, math.ceil(n * p + 10 * spread + 10))
    k = np.arange(first, last, dtype=float)
    log_ratios = np.log((n - k) / (k + 1) * (p / (1 - p)))  # of the probability of k + 1 to that of k
    log_pmf = np.concatenate([[0.0], np.cumsum(log_ratios)])
    cdf = np.cumsum(np.exp(log_pmf - log_pmf.max()))
    low, high = np.searchsorted(cdf / cdf[-1], [0.025, 0.975])
    return first + int(low), first + int(high) + 1


def samples_to_bound(p: float) -> int:
    """The smallest n of which the maximum lies above the p-quantile with 95%: 59 for p95, 299 for p99."""
    return math.ceil(math.log(0.05) / math.log(p))


def mser5(values: NDArray[np.number]) -> int:
    """How many leading observations are warm-up, by MSER-5: a multiple of 5, less than half of them.

    The cut minimises the squared standard error of what is left, over means of five observations (White 1997). A cut
    near half of the observations means that no steady state was found.
    """
    groups = len(values) // 5
    if groups < 2:
        return 0
    means = np.asarray(values[: groups * 5], float).reshape(groups, 5).mean(axis=1)
    means -= np.median(means)  # so that a constant rest has an error of exactly 0
    left = np.arange(groups, 0, -1)
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    errors = np.maximum(squares - sums * sums / left, 0.0) / (left * left)
    return int(np.argmin(errors[: groups // 2])) * 5
