"""Types of numbers with units and ranges, for the fields of scenarios."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from simulator.scenario.units import format_bandwidth, format_duration, format_size

#: Functions that format a number, by the kind of its unit.
FORMATS = {"duration": format_duration, "size": format_size, "bandwidth": format_bandwidth}


class Unit(NamedTuple):
    """Kind of unit in which an integer is written and read."""

    name: str


class Range(NamedTuple):
    """Inclusive bounds of a number; `above` and `below` exclude theirs."""

    min: float = -math.inf
    max: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def problem(self, value: float, unit: Unit | None = None) -> str | None:
        """Return the reason why `value`, of that unit, is out of bounds; None if it is not."""
        if value < self.min or value <= self.above:
            return f"must be {'at least ' if value < self.min else 'more than '}{_bound(self.min, self.above, unit)}"
        if value > self.max or value >= self.below:
            return f"must be {'at most ' if value > self.max else 'less than '}{_bound(self.max, self.below, unit)}"
        return None


Duration = Annotated[int, Unit("duration")]


Size = Annotated[int, Unit("size")]


Bandwidth = Annotated[int, Unit("bandwidth")]


def _bound(inclusive: float, exclusive: float, unit: Unit | None) -> str:
    bound = inclusive if math.isfinite(inclusive) else exclusive
    if unit is not None:
        return FORMATS[unit.name](int(bound))
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
