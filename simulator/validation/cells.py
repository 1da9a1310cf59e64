"""Typed access to the cells of a row of measurements."""

from __future__ import annotations

import math
import re

from cost_models.errors import shown
from simulator.errors import InputError

#: Limits of measured numbers other than 0: ratios of two such numbers are finite.
_LEAST, _MOST = 1e-9, 1e12
#: Limit of counts: requests, tokens, clients, GPUs.
_MOST_COUNTED = 10**7


class NotSimulatedError(Exception):
    """Error about a row that cannot be simulated: with features that are not simulated, or with too few values."""


class Cells:
    """Typed access to the cells of one row; an empty cell is None."""

    def __init__(self, where: str, cells: dict[str, str]) -> None:
        self.where = where
        self._cells = cells

    def text(self, *names: str) -> str | None:
        """Return the text of the first of these columns that is not empty."""
        for name in names:
            value = (self._cells.get(name) or "").strip()
            if value and value.lower() not in ("nan", "none"):
                return value
        return None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of a cell that has several, separated by semicolons."""
        parts = (part.strip() for part in (self.text(name) or "").split(";"))
        return tuple(part for part in parts if part)

    def number(self, *names: str) -> float | None:
        """Return the number in the first of these columns that is not empty."""
        for name in names:
            value = self.text(name)
            if value is None:
                continue
            found = self._float(name, value)
            if name == "request_rate" and found == math.inf:  # all at once
                return found
            if not (found == 0 or _LEAST <= found <= _MOST):
                raise self.error(name, f"0, or a number from {_LEAST:g} to {_MOST:g}", value)
            return found
        return None

    def count(self, *names: str, least: int = 1) -> int | None:
        """Return a whole number of at least `least`; words, such as `engine default`, count as empty."""
        value = self.text(*names)
        if value is None or not re.search(r"\d", value):
            return None
        found = self._float(names[0], value)
        if not least <= found <= _MOST_COUNTED or found != int(found):
            raise self.error(names[0], f"a whole number from {least} to {_MOST_COUNTED}", value)
        return int(found)

    def _float(self, name: str, value: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise self.error(name, "a number", value) from None

    def error(self, name: str, expected: str, found: object) -> InputError:
        """Return the error about a wrong value in a column of this row."""
        return InputError(f"{self.where}: {name}: expected {expected}, found {shown(found)}")

    def flag(self, name: str) -> bool | None:
        """Return a cell as True or False."""
        value = self.text(name)
        return None if value is None else value.lower() in ("true", "1", "yes")
