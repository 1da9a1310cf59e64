"""Functions of one number that are linear between knots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cost_models.roofline.operands import Floats


def line(knots: Floats, values: Floats, at: Floats) -> Floats:
    """Return the values `at` of the lines through `values` (m,) at the increasing `knots` (m,).

    Below the first knot the value is the first one; above the last knot the last line continues. The function is
    continuous, and does not decrease if the values do not.
    """
    low, share = segments(knots, at)
    high = np.minimum(low + 1, len(knots) - 1)
    found: Floats = values[low] * (1 - share) + values[high] * share
    return found


def segments(knots: Floats, at: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return for each point the knot below it, and the weight of the next knot: more than 1 above the last knot."""
    if len(knots) == 1:
        return np.zeros(len(at), np.intp), np.zeros(len(at))
    low = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    return low, np.maximum(0.0, (at - knots[low]) / (knots[low + 1] - knots[low]))


def rounded(values: Iterable[float]) -> list[float]:
    """Return numbers with four significant digits, as in calibrated files."""
    return [float(f"{value:.4g}") for value in values]
