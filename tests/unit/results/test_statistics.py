"""Quantiles, intervals and warm-up against closed forms and scipy. F-numbers are those of the reference cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from simulator.results import statistics
from simulator.results.statistics import Distribution, confidence_ranks, mser5, samples_to_bound


def ar1(phi: float, start: float, count: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=count)
    series = np.empty(count)
    series[0] = start
    for i in range(1, count):
        series[i] = phi * series[i - 1] + noise[i]
    return series


def mm1_waits(rng: np.random.Generator, rho: float, count: int) -> np.ndarray:
    """Return waiting times of consecutive customers of a stationary M/M/1 of unit service rate."""
    first = rng.exponential(1 / (1 - rho)) if rng.random() < rho else 0.0
    steps = rng.exponential(1, count) - rng.exponential(1 / rho, count)
    walk = np.concatenate([[0.0], np.cumsum(steps[:-1])])
    return np.maximum(first + walk, walk - np.minimum.accumulate(walk))


def half_width(interval: tuple[float, float] | None) -> float:
    assert interval is not None
    return (interval[1] - interval[0]) / 2


# --- quantiles


def test_percentiles_do_not_add() -> None:
    stages = np.random.default_rng(1).exponential(size=(2, 200_000))
    total = Distribution.of_series(stages.sum(axis=0)).quantile(0.95)
    assert total == pytest.approx(4.74386, rel=0.01)
    assert sum(Distribution.of_series(stage).quantile(0.95) for stage in stages) == pytest.approx(5.99146, rel=0.01)


def test_percentiles_of_replicas_are_pooled_not_averaged() -> None:
    rng = np.random.default_rng(2)
    fast, slow = rng.exponential(1, 200_000), rng.exponential(5, 200_000)
    pooled = Distribution.of_series(np.concatenate([fast, slow])).quantile(0.95)
    assert pooled == pytest.approx(11.5134, rel=0.01)
    mean = (Distribution.of_series(fast).quantile(0.95) + Distribution.of_series(slow).quantile(0.95)) / 2
    assert mean == pytest.approx(8.9872, rel=0.01)


def test_quantiles_interpolate_linearly() -> None:
    assert Distribution.of_series(np.arange(1, 11)).quantile(0.95) == pytest.approx(9.55, rel=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 997])
def test_quantiles_are_numpys(count: int, p: float) -> None:
    values = np.random.default_rng(count).lognormal(size=count)
    assert Distribution.of_series(values).quantile(p) == pytest.approx(np.quantile(values, p), rel=1e-14)


def test_weights_stand_for_equal_observations() -> None:
    rng = np.random.default_rng(3)
    values, weights = np.sort(rng.integers(0, 50, 300)), rng.integers(1, 20, 300)
    expanded = np.repeat(values, weights)
    sample = Distribution(values, weights.astype(float), np.zeros(300, np.uint8))
    assert sample.count == len(expanded)
    assert sample.mean() == pytest.approx(expanded.mean(), rel=1e-12)
    assert sample.std() == pytest.approx(expanded.std(), rel=1e-12)
    for p in (0.0, 0.1, 0.5, 0.95, 0.99, 1.0):
        assert sample.quantile(p) == pytest.approx(np.quantile(expanded, p), rel=1e-12)


# --- intervals of independent draws


@pytest.mark.parametrize(
    ("n", "p", "ranks"),
    [(100, 0.5, (40, 61)), (1000, 0.95, (936, 964)), (1000, 0.99, (983, 997)), (10000, 0.99, (9880, 9920))],
)
def test_order_statistic_ranks(n: int, p: float, ranks: tuple[int, int]) -> None:
    assert confidence_ranks(n, p) == ranks


def test_ranks_are_binomial_quantiles() -> None:
    for n in (1, 2, 10, 59, 367, 4_321, 250_000):
        for p in (0.01, 0.5, 0.95, 0.99, 0.999):
            low, high = (int(stats.binom.ppf(q, n, p)) for q in (0.025, 0.975))
            assert confidence_ranks(n, p) == (low, high + 1), (n, p)


def test_smallest_samples() -> None:
    assert [samples_to_bound(p) for p in (0.95, 0.99, 0.999)] == [59, 299, 2995]


def test_students_t() -> None:
    exact = [special.stdtrit(freedom, 0.975) for freedom in range(1, statistics.BATCHES)]
    assert list(statistics._T975) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("p", [0.5, 0.95, 0.99])
def test_independent_draws_are_worth_nearly_their_number(p: float) -> None:
    """Without the assumption of independence, intervals are wider by some tenths only."""
    ratios = []
    for seed in range(40):
        values = np.random.default_rng([5, seed]).exponential(size=5_000)
        ascending = np.sort(values)
        low, high = confidence_ranks(5_000, p)
        interval = Distribution.of_series(values).quantile_interval(p)
        ratios.append(2 * half_width(interval) / (ascending[high - 1] - ascending[low - 1]))
    assert min(ratios) >= 1.0
    assert 1.0 < np.mean(ratios) < 1.35


def test_few_observations_have_no_interval() -> None:
    few = Distribution.of_series(np.arange(39.0))
    assert few.mean_interval() is None
    assert few.quantile_interval(0.5) is None
    assert Distribution.of_series(np.random.default_rng(6).random(300)).quantile_interval(0.99) is None


def test_equal_observations_have_an_interval_of_one_point() -> None:
    constant = Distribution.of_series(np.full(1000, 3.0))
    assert constant.mean_interval() == (3.0, 3.0)
    assert constant.quantile_interval(0.95) == (3.0, 3.0)
    assert constant.std() == 0.0


# --- dependent observations


def test_a_queue_needs_far_more_customers_than_the_independent_formula_says() -> None:
    """Mean waits of an M/M/1 at 80% load: 189,775 customers for 5%, not 2,305."""
    interval = Distribution.of_series(mm1_waits(np.random.default_rng(8), 0.8, 189_775)).mean_interval()
    assert interval is not None
    assert interval[0] < 4.0 < interval[1]
    assert 0.5 < half_width(interval) / (0.05 * 4.0) < 1.8


def test_batch_means_see_the_asymptotic_variance() -> None:
    """AR(1) with phi .9: the mean of n has variance 100 / n, 19 times that of independent draws of equal spread."""
    widths = [half_width(Distribution.of_series(ar1(0.9, 0.0, 10_000, seed)).mean_interval()) for seed in range(10)]
    assert np.mean(widths) == pytest.approx(2.093 * math.sqrt(100 / 10_000), rel=0.2)


@pytest.mark.parametrize(("p", "count", "least"), [(0.5, 4_000, 0.9), (0.95, 20_000, 0.9), (0.99, 60_000, 0.85)])
def test_coverage_on_waits_of_a_queue(p: float, count: int, least: float) -> None:
    """The 95% interval contains the true quantile in about nine runs of ten, where the independent one hardly does."""
    true = math.log(0.8 / (1 - p)) / 0.2
    covered = given = naive = 0
    for seed in range(150):
        waits = mm1_waits(np.random.default_rng([9, seed]), 0.8, count)
        sample = Distribution.of_series(waits)
        low, high = (sample.ranked(rank) for rank in confidence_ranks(count, p))
        naive += low <= true <= high
        interval = sample.quantile_interval(p)
        if interval is not None:
            given += 1
            covered += interval[0] <= true <= interval[1]
    assert given > 100
    assert covered / given >= least
    assert naive / 150 < 0.5


def test_a_tail_that_was_met_once_has_no_interval() -> None:
    waits = np.random.default_rng(10).random(5_000)
    waits[2_000:2_060] += 10  # one burst holds all of the largest 1%
    assert Distribution.of_series(waits).quantile_interval(0.99) is None
    assert Distribution.of_series(waits).quantile_interval(0.5) is not None


def test_a_largest_value_that_is_frequent_has_an_honest_interval() -> None:
    """2% of the values share the maximum: in one burst it was met once, spread out it was met often."""
    values = np.random.default_rng(14).random(5_000)
    burst, spread = values.copy(), values.copy()
    burst[1_000:1_100] = 2.0
    spread[::50] = 2.0
    assert Distribution.of_series(burst).quantile_interval(0.99) is None
    assert Distribution.of_series(spread).quantile_interval(0.99) is not None


# --- warm-up


def test_mser5_cuts_the_deterministic_transient_exactly() -> None:
    series = np.concatenate([np.full(50, 10.0), np.tile([1.0, -1.0, 1.0, -1.0, 0.0], 90)])
    assert mser5(series) == 50
    assert series[50:].mean() == 0


def test_mser5_and_batch_means_on_an_autoregression() -> None:
    series = ar1(0.98, 500.0, 5000, 7)
    assert mser5(series) == 620
    assert series.mean() == pytest.approx(4.03104, rel=1e-5)
    sample = Distribution.of_series(series[620:])
    assert sample.mean() == pytest.approx(-0.207543, rel=1e-5)
    assert half_width(sample.mean_interval()) == pytest.approx(1.15628, rel=1e-5)


def test_mser5_is_the_definition() -> None:
    """The cumulative sums against the double loop of the definition."""
    for seed in range(5):
        series = ar1(0.95, 30.0 * seed, 400, seed)
        means = series.reshape(-1, 5).mean(axis=1)
        errors = [((means[d:] - means[d:].mean()) ** 2).sum() / len(means[d:]) ** 2 for d in range(len(means) // 2)]
        assert mser5(series) == 5 * int(np.argmin(errors))


@pytest.mark.parametrize("count", [0, 1, 4, 9, 10, 50])
def test_mser5_of_constant_or_short_series_cuts_nothing(count: int) -> None:
    assert mser5(np.full(count, 0.1)) == 0
