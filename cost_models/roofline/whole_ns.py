"""Times of operators in whole nanoseconds, rounded up, so that their sums are exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.errors import CostModelError


def whole(terms: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.int64]]:
    """Return each term in whole ns, rounded up, so that their sum is exact."""
    return {name: rounded_up(term) for name, term in terms.items()}


#: A longer step, in ns, is the effect of a mistake; the sum over all operators fits in 64 bits.
_LONGEST = 31 * 86_400e9


def rounded_up(time: NDArray[np.float64]) -> NDArray[np.int64]:
    if not np.all(time < _LONGEST):
        raise CostModelError("a step takes longer than a month: see the calibration, the host model and the GPU's file")
    return np.ceil(time).astype(np.int64)


def total(terms: dict[str, NDArray[np.int64]], limit: int) -> list[int]:
    """Return the sum of the terms for 0 to `limit` as a list, whose elements Python reads much faster than an
    array's."""
    total: list[int] = sum(terms.values(), np.zeros(limit + 1, np.int64)).tolist()
    return total


def first_of_each(terms: dict[str, NDArray[np.int64]]) -> dict[str, int]:
    return {name: int(term[0]) for name, term in terms.items()}
