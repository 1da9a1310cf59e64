"""Design matrices of functions that are linear between knots."""

from __future__ import annotations

import numpy as np

from cost_models.laws.lines import segments
from cost_models.roofline.operands import Floats


def hats(knots: Floats, at: Floats) -> Floats:
    """Return the matrix (n, m) from values at the knots (m,) to those at the points (n,), as in `laws.lines.line`."""
    low, share = segments(knots, at)
    matrix, row = np.zeros((len(at), len(knots))), np.arange(len(at))
    matrix[row, low] = 1 - share
    matrix[row, np.minimum(low + 1, len(knots) - 1)] += share
    return matrix
