"""Times over one quantity: straight lines between knots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.laws.table import Floats
from cost_models.laws.values import read_points


@dataclass(frozen=True)
class Curve:
    """`times` in ns at the increasing knots `at`, both (k,), k > 1: flat before them, linear between, `slope` beyond.

    An element's value does not depend on how many are asked for, and never decreases if the times do not.
    """

    at: Floats
    times: Floats
    slope: float

    def __post_init__(self) -> None:
        if len(self.at) < 2 or self.at.shape != self.times.shape or np.any(np.diff(self.at) <= 0):
            raise CostModelError("a curve needs two knots or more, increasing, and a time for each")

    def ns(self, quantity: Floats) -> Floats:
        """The times at each of `quantity` (n,)."""
        low = np.clip(np.searchsorted(self.at, quantity, side="right") - 1, 0, len(self.at) - 2)
        share = np.clip((quantity - self.at[low]) / (self.at[low + 1] - self.at[low]), 0.0, 1.0)
        beyond = np.maximum(quantity - self.at[-1], 0.0) * self.slope
        found: Floats = self.times[low] + (self.times[low + 1] - self.times[low]) * share + beyond
        return found

    def outside(self, name: str, value: float) -> list[str]:
        """The value as a text for a warning if it lies outside the knots."""
        if self.at[0] <= value <= self.at[-1]:
            return []
        return [f"{name} {value:g} (calibrated {self.at[0]:g} to {self.at[-1]:g})"]

    def to_json(self) -> dict[str, Any]:
        """Plain lists; times with four significant digits."""
        times = [float(f"{time:.4g}") for time in self.times.tolist()]
        return {"at": self.at.tolist(), "ns": times, "slope": float(f"{self.slope:.4g}")}

    @staticmethod
    def from_json(data: Fields) -> Curve:
        """The curve that `to_json` described. Raises CostModelError if it is none."""
        at = read_points(data, "at")
        curve = Curve(at, read_points(data, "ns", like=at), data.number("slope", zero=True))
        data.finish()
        return curve


def monotone(times: Floats) -> Floats:
    """Non-decreasing times close to these: halfway between the least such above and the greatest such below them."""
    above, below = np.maximum.accumulate(times), np.minimum.accumulate(times[::-1])[::-1]
    halfway: Floats = (above + below) / 2
    return halfway
