"""Laws of lengths: moments and quantiles against closed forms, and the Gaussian copula.

Tolerances are five standard errors of 200,000 draws, rounded up; the seed is fixed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtri

from simulator.common.randomness import stream
from simulator.scenario.lengths import (
    Exponential,
    Fixed,
    Geometric,
    Lengths,
    LogNormal,
    Mixture,
    Part,
    Quantiles,
    Uniform,
)
from simulator.workload.lengths import NormalValues, UniformValues, draw_latent, lengths
from simulator.workload.requests import Ints
from simulator.workload.tables import MAX_TOKENS

N = 200_000
LAWS: list[Lengths] = [
    Fixed(7),
    Uniform(min=10, max=19),
    LogNormal(mean=1000.0, cv=0.8),
    Geometric(mean=50.0),
    Exponential(mean=300.0),
    Quantiles(points=((0.0, 10), (0.5, 100), (0.9, 1000), (1.0, 5000))),
    Mixture((Part(3.0, LogNormal(min=100, mean=5000.0, cv=0.3)), Part(1.0, Uniform(min=1, max=50)))),
]


def draw(law: Lengths, n: int = N) -> Ints:
    return lengths(law, draw_latent(law, stream(1, "test"), n))


def test_fixed() -> None:
    assert draw(Fixed(7), 3).tolist() == [7, 7, 7]


def test_uniform_takes_every_value_equally_often() -> None:
    values, counts = np.unique(draw(Uniform(min=10, max=19)), return_counts=True)
    assert values.tolist() == list(range(10, 20))
    assert counts / N == pytest.approx(0.1, abs=0.0034)


def test_uniform_ends_are_both_included() -> None:
    ends = UniformValues(np.array([0.0, math.nextafter(1.0, 0.0)]))
    for high in (1, 2, 3, 10**8):
        assert lengths(Uniform(min=1, max=high), ends).tolist() == [1, high]


def test_lognormal_mean_cv_and_quantiles() -> None:
    tokens = draw(LogNormal(mean=1000.0, cv=0.8))
    assert tokens.mean() == pytest.approx(1000, rel=0.01)
    assert tokens.std() / tokens.mean() == pytest.approx(0.8, rel=0.03)
    variance = math.log(1 + 0.8**2)
    for p in (0.1, 0.5, 0.9, 0.99):
        exact = 1000 * math.exp(-variance / 2 + math.sqrt(variance) * float(ndtri(p)))
        assert np.quantile(tokens, p) == pytest.approx(exact, rel=0.02)


def test_geometric_is_memoryless_with_its_mean() -> None:
    tokens = draw(Geometric(mean=50.0))
    assert tokens.min() == 1
    assert tokens.mean() == pytest.approx(50, rel=0.012)
    for k in (1, 10, 100):  # P(X > k) = (1 - 1 / mean) ** k
        assert (tokens > k).mean() == pytest.approx(0.98**k, abs=0.0056)


def test_geometric_of_mean_one_is_one() -> None:
    assert set(draw(Geometric(mean=1.0), 100).tolist()) == {1}


def test_exponential_mean_and_quantiles() -> None:
    tokens = draw(Exponential(mean=300.0))
    assert tokens.mean() == pytest.approx(300, rel=0.012)
    for p in (0.25, 0.5, 0.9):
        assert np.quantile(tokens, p) == pytest.approx(-300 * math.log1p(-p), rel=0.02)


def test_quantiles_are_met_and_log_length_is_interpolated() -> None:
    law = Quantiles(points=((0.0, 10), (0.5, 100), (0.9, 1000), (1.0, 5000)))
    middles = UniformValues(np.array([0.0, 0.25, 0.5, 0.7, 0.9, math.nextafter(1.0, 0.0)]))
    assert lengths(law, middles).tolist() == [10, 32, 100, 316, 1000, 5000]
    tokens = draw(law)
    assert np.quantile(tokens, [0.5, 0.9]) == pytest.approx([100, 1000], rel=0.04)
    assert tokens.min() == 10
    assert 4900 < tokens.max() <= 5000


def test_mixture_weights_and_parts() -> None:
    tokens = draw(Mixture((Part(3.0, LogNormal(mean=5000.0, cv=0.3)), Part(1.0, Uniform(min=1, max=50)))))
    small = tokens <= 50
    assert small.mean() == pytest.approx(0.25, abs=0.005)
    assert tokens[~small].mean() == pytest.approx(5000, rel=0.01)
    assert tokens[small].mean() == pytest.approx(25.5, rel=0.02)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.TAG)
def test_lengths_are_increasing_in_the_latent_value(law: Lengths) -> None:
    tokens = lengths(law, UniformValues(np.linspace(0, 1, 1001)[:-1]))
    assert (np.diff(tokens) >= 0).all()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.TAG)
def test_uniform_and_normal_latent_values_give_the_same_law(law: Lengths) -> None:
    p = np.linspace(0.001, 0.999, 999)
    assert lengths(law, UniformValues(p)) == pytest.approx(lengths(law, NormalValues(ndtri(p))), abs=1)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.TAG)
def test_the_first_lengths_do_not_depend_on_their_number(law: Lengths) -> None:
    assert draw(law, 1000)[:10].tolist() == draw(law, 10).tolist()


def test_bounds_clip() -> None:
    tokens = draw(LogNormal(min=900, max=1100, mean=1000.0, cv=1.0), 10_000)
    assert (tokens.min(), tokens.max()) == (900, 1100)
    assert (tokens == 900).mean() == pytest.approx(0.6, abs=0.1)  # a point mass: set to the bound, not drawn anew


def test_lengths_never_leave_the_range_of_the_schema() -> None:
    extremes = NormalValues(np.array([-40.0, 40.0]))
    assert lengths(LogNormal(mean=1e12, cv=1e6), extremes).tolist() == [1, MAX_TOKENS]
    assert lengths(Exponential(mean=1e12), extremes).tolist() == [1, MAX_TOKENS]
