"""Lengths from their distributions: each maps one latent value a request to a whole number of tokens.

A latent value is uniform on [0, 1) or standard normal, as the distribution needs, so that independent lengths are drawn
without scipy, whose import takes longer than drawing a million lengths. With a Gaussian copula, all are normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from simulator.scenario import lengths as laws
from simulator.workload.requests import Ints
from simulator.workload.tables import MAX_TOKENS

Floats = NDArray[np.float64]

_ABOVE_ZERO = 2.0**-54
_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class UniformValues:
    """Latent values that are uniform on [0, 1)."""

    values: Floats

    def uniform(self) -> Floats:
        return self.values

    def normal(self) -> Floats:
        from scipy.special import ndtri

        # 0 has no finite normal value: it is replaced by half of the smallest uniform value above it.
        return np.asarray(ndtri(np.maximum(self.values, _ABOVE_ZERO)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NormalValues:
    """Latent values that are standard normal."""

    values: Floats

    def uniform(self) -> Floats:
        from scipy.special import ndtr

        return np.minimum(np.asarray(ndtr(self.values), dtype=np.float64), _BELOW_ONE)

    def normal(self) -> Floats:
        return self.values


Latent = UniformValues | NormalValues


def draw_latent(law: laws.Lengths, random: Generator, n: int) -> Latent:
    """Draw `n` latent values of the kind that `law` needs. The first values do not depend on `n`."""
    if isinstance(law, laws.LogNormal):
        return NormalValues(random.standard_normal(n))
    return UniformValues(random.random(n))


def lengths(law: laws.Lengths, latent: Latent) -> Ints:
    """Return the lengths under `law`, at most `MAX_TOKENS`; they increase with the latent values.

    (Of a mixture whose parts overlap, within each part.)
    """
    match law:
        case laws.Fixed():
            return np.full(len(latent.values), law.value, dtype=np.int64)
        case laws.Mixture():
            return _mixture(law, latent.uniform())
    tokens = np.rint(_unbounded(law, latent))
    return np.clip(tokens, law.min, MAX_TOKENS if law.max is None else law.max).astype(np.int64)


def _unbounded(
    law: laws.Uniform | laws.LogNormal | laws.Geometric | laws.Exponential | laws.Quantiles,
    latent: Latent,
) -> Floats:
    match law:
        case laws.Uniform():
            return law.min + np.floor(latent.uniform() * (law.max - law.min + 1))
        case laws.LogNormal():
            variance = math.log1p(law.cv**2)  # of the logarithm
            return np.exp(math.log(law.mean) - variance / 2 + math.sqrt(variance) * latent.normal())
        case laws.Geometric():
            # An exponential rounded up is geometric; the success probability is 1 / mean.
            decay = -math.log1p(-1 / law.mean) if law.mean > 1 else math.inf
            return np.ceil(-np.log1p(-latent.uniform()) / decay)
        case laws.Exponential():
            return -law.mean * np.log1p(-latent.uniform())
        case laws.Quantiles():
            probabilities, tokens = zip(*law.points, strict=True)
            return np.exp(np.interp(latent.uniform(), probabilities, np.log(tokens)))


def _mixture(law: laws.Mixture, uniform: Floats) -> Ints:
    """Return the lengths of a mixture: a uniform value selects the part; its place in the part's share, the length.

    The parts are in order of their medians, so that a correlation also holds across parts.
    """
    parts = sorted(law.parts, key=lambda part: int(lengths(part.law, UniformValues(np.array([0.5])))[0]))
    edges = np.cumsum([0.0, *(part.weight for part in parts)])
    edges /= edges[-1]
    chosen = np.searchsorted(edges[1:-1], uniform, side="right")
    result = np.empty(len(uniform), dtype=np.int64)
    for i, part in enumerate(parts):
        rows = np.flatnonzero(chosen == i)
        within = (uniform[rows] - edges[i]) / (edges[i + 1] - edges[i])
        result[rows] = lengths(part.law, UniformValues(np.clip(within, 0.0, _BELOW_ONE)))
    return result
