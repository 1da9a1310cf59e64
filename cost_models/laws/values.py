"""Readers of the numbers of a law in a calibrated file: finite, in their ranges, and as many as expected."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np

from cost_models.files.fields import Fields, are_numbers, number_problem
from cost_models.roofline.operands import Floats

#: Limit above any time (ns), size (bytes) or factor of a kernel.
_MOST = 1e15


def read_points(fields: Fields, key: str, *, like: Floats | None = None, least: float = 0.0) -> Floats:
    """Return a list of numbers of at least `least`: one or more, or as many as `like` has. Raises CostModelError
    otherwise."""
    found = fields.numbers(key, least=least, most=_MOST)
    if not found or (like is not None and len(found) != len(like)):
        raise fields.error(key, f"expected {'one number or more' if like is None else len(like)}, found {len(found)}")
    return np.array(found, float)


def read_knots(fields: Fields, key: str) -> Floats:
    """Return increasing numbers above 0, one or more. Raises CostModelError otherwise."""
    found = read_points(fields, key)
    if not increase(found):
        raise fields.error(key, "must be above 0 and increase")
    return found


def increase(knots: Floats) -> bool:
    """Return whether knots are above 0 and increase. They are few, for which Python is faster than numpy."""
    listed = knots.tolist()
    return listed[0] > 0 and all(low < high for low, high in pairwise(listed))


def read_rows(fields: Fields, key: str, width: int, *, whole: bool = False) -> list[list[Any]]:
    """Return a list of one or more lists of `width` numbers of at least 0 (of integers from 1 on, if `whole`)."""
    _, found = fields.value(key)
    if not isinstance(found, list) or not found:
        raise fields.error(key, "expected a list of lists of numbers")
    least = 1 if whole else 0.0
    for at, row in enumerate(found):
        if not isinstance(row, list) or len(row) != width:
            raise fields.error(f"{key}[{at}]", f"expected a list of {width} numbers")
    if not are_numbers(list(chain.from_iterable(found)), least, _MOST, whole):
        for at, row in enumerate(found):
            for item in row:
                problem = number_problem(item, least, _MOST, whole)
                if problem:
                    raise fields.error(f"{key}[{at}]", problem)
    return found
