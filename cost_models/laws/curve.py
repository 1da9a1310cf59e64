"""Times as a function of one quantity: straight lines between knots."""

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
    """Times in ns at the increasing knots `at`, both (k,), k > 1: constant before them, linear between, `slope` after
    them.

    The value of an element does not depend on the number of elements; the curve does not decrease if `times` do not.
    """

    at: Floats
    times: Floats
    slope: float

    def __post_init__(self) -> None:
        if len(self.at) < 2 or self.at.shape != self.times.shape or np.any(np.diff(self.at) <= 0):
            raise CostModelError("a curve needs two knots or more, increasing, and a time for each")

    def ns(self, quantity: Floats) -> Floats:
        """Return the times at each `quantity` (n,)."""
        low = np.clip(np.searchsorted(self.at, quantity, side="right") - 1, 0, len(self.at) - 2)
        share = np.clip((quantity - self.at[low]) / (self.at[low + 1] - self.at[low]), 0.0, 1.0)
        beyond = np.maximum(quantity - self.at[-1], 0.0) * self.slope
        found: Floats = self.times[low] + (self.times[low + 1] - self.times[low]) * share + beyond
        return found

    def outside(self, name: str, value: float) -> list[str]:
        """Return the value as a text for a warning if it is outside the knots."""
        if self.at[0] <= value <= self.at[-1]:
            return []
        return [f"{name} {value:g} (calibrated {self.at[0]:g} to {self.at[-1]:g})"]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, with times of four significant digits."""
        times = [float(f"{time:.4g}") for time in self.times.tolist()]
        return {"at": self.at.tolist(), "ns": times, "slope": float(f"{self.slope:.4g}")}

    @staticmethod
    def from_json(data: Fields) -> Curve:
        """Return the curve from the result of `to_json`. Raises CostModelError if it is not valid."""
        at = read_points(data, "at")
        curve = Curve(at, read_points(data, "ns", like=at), data.number("slope", zero=True))
        data.finish()
        return curve


def monotone(times: Floats) -> Floats:
    """Return non-decreasing times close to these: the mean of the running maximum and of the running minimum from the
    end."""
    above, below = np.maximum.accumulate(times), np.minimum.accumulate(times[::-1])[::-1]
    halfway: Floats = (above + below) / 2
    return halfway
