"""Distributions of the lengths of prompts and outputs, in tokens."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import Annotated, ClassVar

from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import Fraction, PositiveFloat, Tokens
from simulator.scenario.quantities import Range
from simulator.scenario.setting import setting


@setting()
class Fixed:
    """Always `value` tokens. May be written as the bare number."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "fixed"
    FROM_SCALAR: ClassVar[str] = "value"
    value: Tokens


@setting()
class Bounds:
    """Bounds of a distribution: values below `min` or above `max` are set to the bound."""

    min: Tokens = 1
    max: Tokens | None = None

    def __post_init__(self) -> None:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max: must be at least min ({self.min}), found {self.max}")


@setting()
class Uniform:
    """Integers from `min` to `max`, both included, with equal probability."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "uniform"
    min: Tokens
    max: Tokens

    def __post_init__(self) -> None:
        if self.max < self.min:
            raise ValueError(f"max: must be at least min ({self.min}), found {self.max}")


@setting()
class LogNormal(Bounds):
    """Log-normal with this mean and coefficient of variation (standard deviation / mean), before the bounds."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "lognormal"
    mean: PositiveFloat = field(kw_only=True)
    cv: PositiveFloat = field(kw_only=True)


@setting()
class Geometric(Bounds):
    """Geometric on 1, 2, 3, ... with this mean: the memoryless law of whole tokens."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "geometric"
    mean: Annotated[float, Range(min=1, max=1e8)] = field(kw_only=True)


@setting()
class Exponential(Bounds):
    """Exponential with this mean, rounded to the nearest token and at least `min`."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "exponential"
    mean: PositiveFloat = field(kw_only=True)


@setting()
class Quantiles(Bounds):
    """An empirical law given by `points`, pairs [probability, tokens]; log length is interpolated over probability.

    The first probability must be 0 and the last 1, both columns increasing.
    """

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "quantiles"
    points: tuple[tuple[Fraction, Tokens], ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        Bounds.__post_init__(self)
        p, tokens = [point[0] for point in self.points], [point[1] for point in self.points]
        if len(p) < 2 or p[0] != 0 or p[-1] != 1:
            raise ValueError("points: must begin at probability 0 and end at probability 1")
        if any(b <= a for a, b in pairwise(p)):
            raise ValueError("points: probabilities must increase")
        if any(b < a for a, b in pairwise(tokens)):
            raise ValueError("points: token counts must not decrease")


@setting()
class Part:
    """One part of a mixture: a distribution, and its frequency relative to the other parts."""

    weight: PositiveFloat
    law: Annotated[Fixed | Uniform | LogNormal | Geometric | Exponential | Quantiles, Tagged("distribution")]


@setting()
class Mixture:
    """Each value comes from one of `parts`, chosen by weight."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "mixture"
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts: needs at least one part")


Lengths = Annotated[Fixed | Uniform | LogNormal | Geometric | Exponential | Quantiles | Mixture, Tagged("distribution")]
