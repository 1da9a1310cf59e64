"""Arrival processes: rates, gaps and, where the rate changes, the arrivals in each part of the time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.scenario.traffic import (
    AllAtOnce,
    Arrivals,
    Bursts,
    ClosedLoop,
    Constant,
    Diurnal,
    Gamma,
    Poisson,
    ThinkTime,
)
from simulator.workload.arrivals import arrivals_before, first_arrivals, solve_kepler, think_times

NS = 10**9
N = 100_000
PROCESSES: list[Arrivals] = [
    Poisson(rate=5.0),
    Gamma(rate=5.0, cv=3.0),
    Gamma(rate=5.0, burstiness=4.0),
    Constant(rate=5.0),
    Bursts(rate=2.0, burst_rate=20.0, every=10 * NS, length=1 * NS),
    Diurnal(rate=5.0, amplitude=0.8, period=100 * NS),
]
tagged = pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.TAG)


def gaps_s(process: Arrivals) -> np.ndarray:
    return np.diff(first_arrivals(process, 1, N)) / NS


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(Poisson(rate=5.0))
    assert gaps.mean() == pytest.approx(0.2, rel=0.016)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)
    assert (gaps > 0.4).mean() == pytest.approx(math.exp(-2), abs=0.006)


@pytest.mark.parametrize(
    ("process", "cv"),
    [(Gamma(rate=5.0, cv=3.0), 3.0), (Gamma(rate=5.0, cv=0.5), 0.5), (Gamma(rate=5.0, burstiness=4.0), 0.5)],
)
def test_gamma_gaps_have_their_rate_and_cv(process: Gamma, cv: float) -> None:
    gaps = gaps_s(process)
    assert gaps.mean() == pytest.approx(0.2, rel=5 * cv / math.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_constant_gaps_do_not_drift() -> None:
    arrival_ns = first_arrivals(Constant(rate=3.0), 1, N)
    assert arrival_ns[:4].tolist() == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert arrival_ns[3 * 33_000] == 33_000 * NS


def test_all_at_once_and_closed_loop_start_at_zero() -> None:
    assert first_arrivals(AllAtOnce(), 1, 3).tolist() == [0, 0, 0]
    assert first_arrivals(ClosedLoop(concurrency=2), 1, 3).tolist() == [0, 0, 0]


def test_bursts_have_their_two_rates_exactly_in_their_times() -> None:
    arrival_ns = first_arrivals(Bursts(rate=2.0, burst_rate=20.0, every=10 * NS, length=1 * NS), 1, N)
    seconds = arrival_ns[-1] / NS
    in_burst = int((arrival_ns % (10 * NS) < NS).sum())
    assert in_burst / (seconds / 10) == pytest.approx(20, rel=0.025)
    assert (N - in_burst) / (seconds * 0.9) == pytest.approx(2, rel=0.025)


def test_bursts_of_equal_rates_are_poisson() -> None:
    same = first_arrivals(Bursts(rate=5.0, burst_rate=5.0, every=NS, length=NS // 3), 1, 1000)
    assert np.abs(same - first_arrivals(Poisson(rate=5.0), 1, 1000)).max() <= 1000  # ns, of rounding


def test_diurnal_rate_follows_the_cosine() -> None:
    period = 1000 * NS
    arrival_ns = first_arrivals(Diurnal(rate=100.0, amplitude=0.8, period=period), 1, N)  # one period's worth
    counts, _ = np.histogram(arrival_ns, bins=10, range=(0, period))
    edges = 2 * np.pi * np.arange(11) / 10
    exact = np.diff(N * (edges - 0.8 * np.sin(edges)) / (2 * np.pi))  # the integral of rate (1 - 0.8 cos)
    assert (np.abs(counts - exact) < 5 * np.sqrt(exact) + 5 * math.sqrt(N) / 10).all()
    assert counts[0] < counts[4] / 5


@pytest.mark.parametrize("eccentricity", [0.0, 0.3, 0.99, 1.0])
def test_kepler_is_solved_over_the_whole_turn(eccentricity: float) -> None:
    mean = np.concatenate([np.linspace(0, 2 * np.pi, 10_001), np.geomspace(1e-15, 1, 500)])
    x = solve_kepler(mean, eccentricity)
    assert x - eccentricity * np.sin(x) == pytest.approx(mean, abs=1e-11)
    assert (np.diff(x[:10_001]) > -1e-9).all()


@tagged
def test_arrivals_never_go_back(process: Arrivals) -> None:
    arrival_ns = first_arrivals(process, 3, N)
    assert arrival_ns.dtype == np.int64
    assert (np.diff(arrival_ns) >= 0).all()


@tagged
def test_the_first_arrivals_do_not_depend_on_their_number(process: Arrivals) -> None:
    assert first_arrivals(process, 1, 1000)[:10].tolist() == first_arrivals(process, 1, 10).tolist()


@tagged
def test_a_duration_gives_exactly_the_arrivals_before_it(process: Arrivals) -> None:
    end_ns = 123_456_789_012
    arrival_ns = arrivals_before(process, 1, end_ns)
    longer = first_arrivals(process, 1, len(arrival_ns) + 1)
    assert arrival_ns.tolist() == longer[:-1].tolist()
    assert arrival_ns[-1] < end_ns <= longer[-1]


def test_a_duration_excludes_its_end() -> None:
    assert arrivals_before(Constant(rate=10.0), 1, NS).tolist() == [i * NS // 10 for i in range(10)]


def test_a_long_silence_at_the_start_only_takes_more_draws() -> None:
    # Bursts of very different rates: the mean says little of the first period.
    process = Bursts(rate=1.0, burst_rate=1000.0, every=100 * NS, length=NS)
    assert len(arrivals_before(process, 1, NS)) == pytest.approx(1000, abs=160)


def test_seeds_differ() -> None:
    assert first_arrivals(Poisson(rate=5.0), 1, 5).tolist() != first_arrivals(Poisson(rate=5.0), 2, 5).tolist()


def test_think_times() -> None:
    assert think_times(ThinkTime(5 * NS), 1, 2).tolist() == [5 * NS, 5 * NS]
    drawn = think_times(ThinkTime(5 * NS, "exponential"), 1, N)
    assert drawn.mean() == pytest.approx(5 * NS, rel=0.016)
    assert drawn[:10].tolist() == think_times(ThinkTime(5 * NS, "exponential"), 1, 10).tolist()


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(InputError, match=r"workload.requests: must be at most 100000000, found 1000000000"):
        first_arrivals(Poisson(rate=1.0), 1, 10**9)
    with pytest.raises(InputError, match=r"workload.duration: more than 100000000 requests arrive in it"):
        arrivals_before(Poisson(rate=1e9), 1, 1000 * NS)
    with pytest.raises(InputError, match=r"workload.arrivals: the last one comes after more than a century"):
        first_arrivals(Poisson(rate=1e-12), 1, 10)
    with pytest.raises(InputError, match=r"workload.duration: no request arrives in it"):
        arrivals_before(Poisson(rate=1e-6), 1, NS)
