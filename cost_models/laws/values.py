"""The numbers of a law in a calibrated file: each finite, in its range, and where it is expected."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.errors import CostModelError
from cost_models.fields import MOST, Fields, number_problem
from cost_models.operands import Floats


def law_fields(data: object, name: str) -> Fields:
    """Typed access to the mapping `data`, which is to be the law or part of one called `name` in errors."""
    return Fields(name, data)


def points(fields: Fields, key: str, *, like: Floats | None = None, least: float = 0.0) -> Floats:
    """A list of numbers of at least `least`: one or more, or as many as `like` has. Raises CostModelError otherwise."""
    found = fields.numbers(key, least=least)
    if not found or (like is not None and len(found) != len(like)):
        raise fields.error(key, f"expected {'one number or more' if like is None else len(like)}, found {len(found)}")
    return np.array(found, float)


def knots(fields: Fields, key: str) -> Floats:
    """Numbers above 0 that increase: one or more. Raises CostModelError otherwise."""
    found = points(fields, key)
    if found[0] <= 0 or np.any(np.diff(found) <= 0):
        raise fields.error(key, "must be above 0 and increase")
    return found


def rows(fields: Fields, key: str, width: int, *, whole: bool = False) -> list[list[Any]]:
    """A list of lists of `width` numbers of at least 0 (of integers from 1, if `whole`), one or more."""
    _, found = fields.value(key)
    if not isinstance(found, list) or not found:
        raise fields.error(key, "expected a list of lists of numbers")
    for at, row in enumerate(found):
        if not isinstance(row, list) or len(row) != width:
            raise fields.error(f"{key}[{at}]", f"expected a list of {width} numbers")
        for item in row:
            problem = number_problem(item, 1 if whole else 0.0, MOST, whole)
            if problem:
                raise fields.error(f"{key}[{at}]", problem)
    return found


def entries(data: object, key: str) -> list[Any]:
    """The list at `key` of a law. Raises CostModelError if there is none."""
    _, found = Fields("law", data).value(key)
    if not isinstance(found, list):
        raise CostModelError(f"law: {key}: expected a list")
    return found
