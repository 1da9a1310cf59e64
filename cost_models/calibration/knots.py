"""The choice of a table's knots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def thinned(values: Floats, ratio: float) -> Floats:
    """Return some of the distinct `values`, each at least `ratio` times the one before, with the first and the last."""
    distinct = np.unique(values)
    kept = [float(distinct[0])]
    for value in distinct[1:].tolist():
        if value >= kept[-1] * ratio:
            kept.append(value)
    if kept[-1] < distinct[-1]:
        kept.append(float(distinct[-1]))
    return np.array(kept)
