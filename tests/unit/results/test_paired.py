"""Differences between designs that met the same requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.results.paired import over_requests, over_seeds, ratio_over_requests, ratio_over_seeds, t975


def test_students_t() -> None:
    assert t975(1) == pytest.approx(12.7062, abs=1e-4)
    assert t975(4) == pytest.approx(2.7764, abs=1e-4)
    assert t975(10**6) == pytest.approx(1.95996, abs=1e-4)


def test_differences_over_seeds_by_hand() -> None:
    """1, 2 and 3 less than the baseline: a mean of -2, a deviation of 1, and 4.3027 / sqrt(3) of it to both sides."""
    found = over_seeds([9.0, 18.0, 27.0], [10.0, 20.0, 30.0])
    assert (found.value, found.method, found.count) == (-2.0, "seeds", 3)
    assert found.interval == pytest.approx((-2 - 4.302653 / math.sqrt(3), -2 + 4.302653 / math.sqrt(3)))


def test_one_seed_says_nothing_of_the_variation() -> None:
    found = over_seeds([9.0], [10.0])
    assert (found.value, found.interval, found.method, found.count) == (-1.0, None, "none", 1)


def test_pairing_takes_out_what_the_requests_share() -> None:
    """The workload varies by 100 from request to request, the designs by 1: the interval is that of the designs."""
    draw = np.random.default_rng(1)
    shared = draw.exponential(100.0, 2_000)
    found = over_requests(shared + 5 + draw.normal(0, 1, 2_000), shared, True)
    assert (found.method, found.count) == ("requests", 2_000)
    assert found.value == pytest.approx(5, abs=0.1)
    assert found.interval is not None
    assert found.interval[0] < 5 < found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.25


def test_intervals_over_requests_cover() -> None:
    """Differences that depend on each other (an AR(1) with 0.9): the interval still covers the mean, 0, in nine of ten
    series or more, where that of independent draws would in four of ten."""
    covered = 0
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(size=4_000)
        series = np.empty(4_000)
        value = 0.0
        for at, shock in enumerate(noise.tolist()):
            value = 0.9 * value + shock
            series[at] = value
        interval = over_requests(series, np.zeros(4_000), True).interval
        assert interval is not None
        covered += interval[0] <= 0 <= interval[1]
    assert covered >= 180


def test_too_few_requests_have_no_interval() -> None:
    assert over_requests(np.arange(10.0), np.zeros(10), True).interval is None


def test_ratios_over_seeds_by_hand() -> None:
    """Twice, four times and eight times as much: four times, and 4.3027 / sqrt(3) of log 2 to both sides of its log."""
    found = ratio_over_seeds([2.0, 40.0, 24.0], [1.0, 10.0, 3.0])
    assert (found.method, found.count) == ("seeds", 3)
    assert found.value == pytest.approx(4)
    half_width = 4.302653 / math.sqrt(3) * math.log(2)
    assert found.interval == pytest.approx((4 * math.exp(-half_width), 4 * math.exp(half_width)))
    other = ratio_over_seeds([1.0, 10.0, 3.0], [2.0, 40.0, 24.0])
    assert other.value == pytest.approx(1 / found.value)


def test_a_ratio_over_requests_is_that_of_the_means() -> None:
    draw = np.random.default_rng(2)
    shared = draw.exponential(100.0, 2_000)
    found = ratio_over_requests(2 * shared + draw.normal(0, 1, 2_000), shared, True)
    assert (found.method, found.count) == ("requests", 2_000)
    assert found.interval is not None
    assert found.interval[0] < 2 < found.interval[1]
    assert found.interval[1] - found.interval[0] < 0.01
    few = ratio_over_requests(shared[:39], shared[:39], True)
    assert (few.value, few.interval) == (1, None)


def test_runs_that_may_show_no_interval_have_none_of_their_difference() -> None:
    draw = np.random.default_rng(8)
    ours, theirs = draw.exponential(1, (2, 2_000))
    assert over_requests(ours, theirs, True).interval is not None
    assert over_requests(ours, theirs, False).interval is None
    assert ratio_over_requests(ours, theirs, False).interval is None
