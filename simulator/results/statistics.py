"""Quantiles and means with confidence intervals for correlated observations, and the end of a warm-up.

Latencies of successive requests are correlated, so that n of them have less information than n independent draws.
Intervals come from batches, which are nearly independent even if single observations are not: 20 batches of one run, in
order of time, or the runs of several replications. `effective_size` decides whether an interval is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import chunks, release, zeros

Floats = NDArray[np.float64]

#: Batches in order of time: a compromise between long ones (independent) and many (a well-known variance).
BATCHES = 20
#: Two observations per batch, the fewest for which an interval is given.
SMALLEST_SAMPLE = 2 * BATCHES
#: Student's t at 97.5% for 1 to 19 degrees of freedom, and the normal law's.
_T975 = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024),
)
_Z975 = 1.959964

Interval = tuple[float, float] | None


def t975(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t distribution."""
    if degrees <= len(_T975):
        return _T975[degrees - 1]
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


class Distribution:
    """A weighted sample: a value of weight w stands for w equal observations.

    `values` ascend; `weights` are positive integers, None if all are 1; `batch` is the batch of each value, from 0: one
    of 20 in order of time, or the run of a sample pooled from `replications` runs. Quantiles are those of the expanded
    sample under linear interpolation (numpy's default).
    """

    __slots__ = (
        "_batch",
        "_cumulative",
        "_independent",
        "_replicated",
        "_sums",
        "_totals",
        "_weights",
        "count",
        "values",
    )

    def __init__(
        self,
        values: NDArray[np.number],
        weights: Floats | None,
        batch: NDArray[np.integer],
        replications: int | None = None,
    ) -> None:
        self.values = np.asarray(values, float)
        self._weights = weights
        self._batch = batch
        self._replicated = replications is not None
        size, batches = len(self.values), replications or BATCHES
        self._cumulative = None if weights is None else zeros(size, float)
        self._totals: Floats = np.zeros(batches)
        self._sums: Floats = np.zeros(batches)
        squares = float(size)
        if weights is None:
            self._totals = np.bincount(batch, minlength=batches).astype(float)
            self._sums = np.bincount(batch, self.values, batches).astype(float)
        else:
            squares = self._sum_up(weights, batch)
        self.count = int(self._up_to(size))
        # Kish's effective number of observations: as many equal weights estimate a mean equally well.
        self._independent = self.count**2 / squares if self.count else 0.0

    def _sum_up(self, weights: Floats, batch: NDArray[np.integer]) -> float:
        """Sum up the weights and the weighted values, a chunk at a time with the same result as all at once, and return
        the sum of the squared weights. Sums of weights are exact, and those of values continue in their order.
        """
        assert self._cumulative is not None
        batches, upto, squares = np.arange(len(self._sums)), 0.0, 0.0
        for rows in chunks(len(weights)):
            weight, of = weights[rows], batch[rows]
            np.cumsum(weight, out=self._cumulative[rows])
            self._cumulative[rows] += upto
            upto = float(self._cumulative[rows.stop - 1])
            self._totals += np.bincount(of, weight, len(batches))
            continued = np.concatenate([batches, of]), np.concatenate([self._sums, weight * self.values[rows]])
            self._sums = np.bincount(*continued).astype(float)
            squares += float(np.sum(weight * weight))
            release()
        return squares

    @classmethod
    def of_series(cls, values: NDArray[np.number]) -> Distribution:
        """Create a sample of observations of weight 1, given in order of time."""
        order = np.argsort(values)
        values = values[order]
        order *= BATCHES
        order //= max(len(order), 1)
        return cls(values, None, order.astype(np.uint8))

    @classmethod
    def of_replications(cls, samples: Sequence[tuple[Floats, Floats]]) -> Distribution:
        """Create a sample from the values and weights of several runs, each a batch."""
        values = np.concatenate([values for values, _ in samples])
        weights = np.concatenate([weights for _, weights in samples])
        run = np.repeat(np.arange(len(samples), dtype=np.uint32), [len(values) for values, _ in samples])
        order = np.argsort(values, kind="stable")
        return cls(values[order], weights[order], run[order], len(samples))

    @property
    def weights(self) -> Floats:
        """Number of observations that each value stands for."""
        return np.ones(len(self.values)) if self._weights is None else self._weights

    def mean(self) -> float:
        """Return the mean of the expanded sample."""
        return float(self._sums.sum()) / self.count

    def std(self) -> float:
        """Return the standard deviation of the expanded sample (over n, as load generators compute it)."""
        mean, squares = self.mean(), zeros(len(self.values), float)
        for rows in chunks(len(squares)):
            squares[rows] = self.values[rows] - mean
            squares[rows] *= squares[rows]
            if self._weights is not None:
                squares[rows] *= self._weights[rows]
            release()
        return math.sqrt(float(np.sum(squares)) / self.count)

    def quantile(self, p: float) -> float:
        """Return the p-quantile, 0 <= p <= 1, interpolated between the observations around rank 1 + (n - 1) p."""
        position = (self.count - 1) * p
        below = math.floor(position)
        part = position - below
        low, high = self.ranked(below + 1), self.ranked(min(below + 2, self.count))
        # Interpolated from the nearer of the two, for the rounding of numpy.
        return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)

    def ranked(self, rank: int) -> float:
        """Return the observation of this rank, 1 for the smallest."""
        row = rank - 1 if self._cumulative is None else np.searchsorted(self._cumulative, rank - 0.5)
        return float(self.values[row])

    def share_within(self, limit: float) -> float:
        """Return the share of observations of at most `limit`."""
        at_most = int(np.searchsorted(self.values, limit, "right"))
        return self._up_to(at_most) / self.count if at_most else 0.0

    def mean_interval(self, variance_factor: float = 1.0) -> Interval:
        """Return the mean's 95% interval from batch means and Student's t; None if the sample is too small.

        `variance_factor` multiplies the variance between batches (see `effective_size`).
        """
        if not self._in_batches():
            return None
        mean, variance = _ratio(self._sums, self._totals)
        half_width = t975(len(self._totals) - 1) * math.sqrt(variance * variance_factor)
        return mean - half_width, mean + half_width

    def quantile_interval(self, p: float, variance_factor: float = 1.0) -> Interval:
        """Return the 95% interval of the p-quantile from order statistics; None if the effective size is too small.

        The ranks are those of the binomial distribution for the effective number of independent draws.
        `variance_factor` as in `mean_interval`.
        """
        size = int(self.effective_size(p) / variance_factor)
        if not size:
            return None
        low, high = confidence_ranks(size, p)
        if low < 1 or high > size:
            return None
        scale = self.count / size
        return self.ranked(math.floor(low * scale)), self.ranked(math.ceil((high - 1) * scale) + 1)

    def effective_size(self, p: float) -> float:
        """Return the number of independent draws that estimate the p-quantile q as precisely as this sample; 0 if
        unknown.

        The share of observations above q has the variance p (1 - p) / n over n independent draws. Here it is estimated
        from batches and enlarged by two factors: Student's t for the number of batches in which the rarer side of q
        occurs (a tail that occurs in two batches counts as two observations), and (1 + r) / (1 - r), where r is the
        correlation of successive batches of one run.
        """
        if not self._in_batches():
            return 0.0
        q = self.quantile(p)
        first = int(np.searchsorted(self.values, q, "right"))
        if first == len(self.values):  # no value lies above q: count those equal to it
            first = int(np.searchsorted(self.values, q))
        weights = None if self._weights is None else self._weights[first:]
        above = np.bincount(self._batch[first:], weights, len(self._totals))
        share, variance = _ratio(above, self._totals)
        if variance == 0.0:
            return self._independent
        met = int(min(np.count_nonzero(above), np.count_nonzero(above < self._totals)))
        if met < 2:
            return 0.0
        variance *= (t975(met - 1) / _Z975) ** 2
        if not self._replicated:
            variance *= _correlation_factor(above / self._totals - share)
        return min(self._independent, share * (1 - share) / variance)

    def _up_to(self, row: int) -> float:
        """Return the number of observations before this row of `values`."""
        if self._cumulative is None:
            return float(row)
        return float(self._cumulative[row - 1]) if row else 0.0

    def _in_batches(self) -> bool:
        return self.count >= SMALLEST_SAMPLE and bool(self._totals.all())


def _ratio(sums: NDArray[np.number], totals: NDArray[np.number]) -> tuple[float, float]:
    """Return the mean over all batches and its variance, by the ratio estimator, which allows for unequal batches."""
    mean = float(sums.sum() / totals.sum())
    errors = (sums - mean * totals) / totals.sum()
    return mean, float(np.dot(errors, errors)) * len(totals) / (len(totals) - 1)


def _correlation_factor(deviations: NDArray[np.number]) -> float:
    """Return the factor (1 + r) / (1 - r) by which a positive correlation r of successive batches enlarges the
    variance.
    """
    squares = float(np.dot(deviations, deviations))
    r = float(np.dot(deviations[1:], deviations[:-1])) / squares if squares else 0.0
    r = min(max(r, 0.0), 0.9)
    return (1 + r) / (1 - r)


def ratio_interval(above: NDArray[np.number], below: NDArray[np.number]) -> Interval:
    """Return the 95% interval of sum(above) / sum(below) over observations in order of time; None for small samples.

    It comes from 20 batches and Student's t.
    """
    batch = np.arange(len(below)) * BATCHES // max(len(below), 1)
    sums, totals = (np.bincount(batch, series, BATCHES) for series in (above, below))
    if len(below) < SMALLEST_SAMPLE or not totals.all():
        return None
    ratio, variance = _ratio(sums, totals)
    half_width = t975(BATCHES - 1) * math.sqrt(variance)
    return ratio - half_width, ratio + half_width


def confidence_ranks(n: int, p: float) -> tuple[int, int]:
    """Return the ranks (from 1) of the order statistics of n independent draws that enclose the p-quantile with 95%.

    They are the 2.5% and 97.5% quantiles of Binomial(n, p), the latter plus one. Rank 0 or n + 1 means that n is too
    small.
    """
    spread = math.sqrt(n * p * (1 - p))
    first = max(0, math.floor(n * p - 10 * spread - 10))  # the range left out has a probability below 1e-20
    last = min(n, math.ceil(n * p + 10 * spread + 10))
    k = np.arange(first, last, dtype=float)
    log_ratios = np.log((n - k) / (k + 1) * (p / (1 - p)))  # of the probability of k + 1 to that of k
    log_pmf = np.concatenate([[0.0], np.cumsum(log_ratios)])
    cdf = np.cumsum(np.exp(log_pmf - log_pmf.max()))
    low, high = np.searchsorted(cdf / cdf[-1], [0.025, 0.975])
    return first + int(low), first + int(high) + 1


def samples_to_bound(p: float) -> int:
    """Return the smallest n for which the maximum lies above the p-quantile with 95%: 59 for p95, 299 for p99."""
    return math.ceil(math.log(0.05) / math.log(p))


def mser5(values: NDArray[np.number]) -> int:
    """Return the number of leading observations to discard as warm-up, by MSER-5: a multiple of 5, less than half.

    The cut minimises the squared standard error of the remaining observations, over means of five (White 1997). A cut
    near half of the observations means that no steady state was found.
    """
    groups = len(values) // 5
    if groups < 2:
        return 0
    means = np.asarray(values[: groups * 5], float).reshape(groups, 5).mean(axis=1)
    means -= np.median(means)  # a constant remainder then has an error of exactly 0
    left = np.arange(groups, 0, -1)
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    errors = np.maximum(squares - sums * sums / left, 0.0) / (left * left)
    return int(np.argmin(errors[: groups // 2])) * 5
