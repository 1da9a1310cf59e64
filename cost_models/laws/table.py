"""A table over the logarithms of a shape: measured time as a multiple of a physical base."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.laws.values import increase, read_knots, read_points

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A function of `names`, given at the `knots` of each; between knots linear in the logarithm of each coordinate.

    Beyond the knots it is constant, so that a law that multiplies it with a physical base extrapolates as the base
    does. `values` has one axis for each name. Only IEEE arithmetic is used at run time (Python's logarithms of
    coordinates), so that every machine gets the same bits.
    """

    names: tuple[str, ...]
    knots: tuple[Floats, ...]
    values: Floats

    def __post_init__(self) -> None:
        shape = tuple(len(knots) for knots in self.knots)
        if len(self.names) != len(self.knots) or self.values.shape != shape:
            raise CostModelError(f"table over {self.names}: knots {shape} do not fit values {self.values.shape}")
        for name, knots in zip(self.names, self.knots, strict=True):
            if not len(knots) or not increase(knots):
                raise CostModelError(f"table over {self.names}: the knots of {name} must be above 0 and increase")

    def weights(self, *coordinates: Floats) -> list[tuple[NDArray[np.intp], Floats]]:
        """Return for each axis the lower knot of each point, and the weight of the knot above it (0 to 1)."""
        if len(coordinates) != len(self.names):
            raise CostModelError(f"table over {self.names}: {len(coordinates)} coordinates")
        found = []
        for knots, points in zip(self.knots, coordinates, strict=True):
            if len(knots) == 1:
                found.append((np.zeros(len(points), np.intp), np.zeros(len(points))))
                continue
            logs, at = _logs(knots), _logs(points)
            low = np.clip(np.searchsorted(logs, at, side="right") - 1, 0, len(knots) - 2)
            share = (at - logs[low]) / (logs[low + 1] - logs[low])
            found.append((low, np.clip(share, 0.0, 1.0)))
        return found

    def at(self, *coordinates: Floats) -> Floats:
        """Return the values at points, (n,); `coordinates` has an array (n,) for each name."""
        axes = self.weights(*coordinates)
        total = np.zeros(len(coordinates[0]))
        for corner in range(2 ** len(axes)):
            index, weight = [], np.ones(len(coordinates[0]))
            for axis, (low, share) in enumerate(axes):
                upper = corner >> axis & 1
                index.append(np.minimum(low + upper, self.values.shape[axis] - 1))
                weight = weight * (share if upper else 1 - share)
            total += weight * self.values[tuple(index)]
        return total

    def fix(self, **given: float) -> Table:
        """Return the table over the other axes at these values of the `given` ones."""
        table = self
        for name, value in given.items():
            axis = table.names.index(name)
            one = Table((name,), (table.knots[axis],), np.zeros(len(table.knots[axis])))
            (low, share), *_ = one.weights(np.array([value]))
            upper = min(int(low[0]) + 1, len(table.knots[axis]) - 1)
            lower_values, upper_values = np.take(table.values, int(low[0]), axis), np.take(table.values, upper, axis)
            values = lower_values * (1 - share[0]) + upper_values * share[0]
            table = Table(
                table.names[:axis] + table.names[axis + 1 :], table.knots[:axis] + table.knots[axis + 1 :], values
            )
        return table

    def outside(self, **given: float) -> list[str]:
        """Return the values outside the knots, as texts for a warning."""
        found = []
        for name, value in given.items():
            knots = self.knots[self.names.index(name)]
            if not knots[0] <= value <= knots[-1]:
                found.append(f"{name} {value:g} (calibrated {knots[0]:g} to {knots[-1]:g})")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, with values of four significant digits."""
        flat = [float(f"{value:.4g}") for value in self.values.ravel().tolist()]
        knots = {name: points.tolist() for name, points in zip(self.names, self.knots, strict=True)}
        return {"knots": knots, "values": flat}

    @staticmethod
    def from_json(data: Fields, names: tuple[str, ...]) -> Table:
        """Return the table over `names` from the result of `to_json`. Raises CostModelError if it is not valid."""
        given = data.required_section("knots")
        axes = tuple(read_knots(given, name) for name in names)
        given.finish()
        values = read_points(data, "values")
        shape = [len(axis) for axis in axes]
        if len(values) != math.prod(shape):
            raise data.error("values", f"expected {math.prod(shape)} numbers for the knots, found {len(values)}")
        data.finish()
        return Table(names, axes, values.reshape(shape))


def _logs(points: Floats | Sequence[float]) -> Floats:
    return np.array([math.log2(point) if point > 0 else -math.inf for point in np.asarray(points).tolist()])
