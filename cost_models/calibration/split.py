"""Division of measured shapes into fitted and held-out ones, and a law's errors on the latter."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

#: The share of shapes that are held out of a fit.
HELD_OUT = 0.3


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions against measurements, in percent; `bias_pct` is the median signed one."""

    rows: int
    median_pct: float
    p90_pct: float
    bias_pct: float

    def to_json(self) -> dict[str, float]:
        """Return plain numbers, rounded to a hundredth of a percent."""
        return {key: round(value, 2) for key, value in asdict(self).items()}


def held_out(shapes: pd.DataFrame) -> NDArray[np.bool_]:
    """Return True for the rows whose shape is held out: 30% of the distinct shapes, chosen by a hash of their columns.

    The choice of a shape does not depend on the other rows, so that adding or dropping rows does not change it.
    """
    keys = shapes.astype(str).agg(",".join, axis=1)
    limit = int(HELD_OUT * 2**32)
    chosen = {key: int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") < limit for key in keys.unique()}
    return np.array([chosen[key] for key in keys], dtype=bool)


def errors(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Errors:
    """Return the errors of `predicted` against `measured`, both (n,), n > 0."""
    signed = 100 * (predicted / measured - 1)
    size = np.abs(signed)
    return Errors(len(size), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(signed)))
