"""Typed reading of a mapping of a YAML or JSON file: every number has a range, every error names place and key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from cost_models.errors import CostModelError, shown
from cost_models.files.nodes import Node, shown_key

T = TypeVar("T")

#: Default limits of whole numbers and of numbers: larger ones are mistakes. Products of two of them are finite floats.
MOST_WHOLE = 10**12
MOST = 1e18


class Fields:
    """Typed access to `data`, the mapping at `prefix` of the file `where`. A null counts as missing.

    For a YAML file, `data` is a `Node`, and errors also have line and column.
    """

    def __init__(self, where: str, data: object, prefix: str = "") -> None:
        self.where, self._places = where, {}
        self._prefix = prefix
        if isinstance(data, Node):
            self.where, self._places, data = data.where, data.key_where, data.value
        if not isinstance(data, Mapping):
            place = prefix.rstrip(".") or "top level"
            raise CostModelError(f"{where}: {place}: expected a mapping, found {_named(data)}")
        self._data: Mapping[object, object] = data
        self._read: set[str] = set()

    def error(self, key: str, what: str) -> CostModelError:
        """Return the error about a mistake at `key`."""
        return CostModelError(f"{self._places.get(key, self.where)}: {self._prefix}{shown_key(key)}: {what}")

    def value(self, *keys: str) -> tuple[str, object]:
        """Return the first of the alternative `keys` that has a value, with the value: None if none has."""
        self._read.update(keys)
        for key in keys:
            found = self._data.get(key)
            found = found.plain() if isinstance(found, Node) else found
            if found is not None:
                return key, found
        return keys[0], None

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = MOST_WHOLE) -> int:
        """Return an integer from `least` to `most`."""
        key, found = self.value(*keys)
        if found is None:
            return self._default(keys, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise self.error(key, f"expected an integer of at least {least}, found {shown(found)}")
        if found > most:
            raise self.error(key, f"expected an integer of at most {most}, found {shown(found)}")
        return found

    def number(self, key: str, *, most: float = MOST, zero: bool = False) -> float:
        """Return a number above 0 (or 0, if `zero`) and up to `most`."""
        _, found = self.value(key)
        if found is None:
            return self._default((key,), None)
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if not number or not 0 <= found <= most or (found == 0 and not zero):  # type: ignore[operator]
            least = "of at least" if zero else "above"
            raise self.error(key, f"expected a number {least} 0 and at most {most:g}, found {shown(found)}")
        return float(found)  # type: ignore[arg-type]

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """Return True or False."""
        _, found = self.value(key)
        if found is None:
            return self._default((key,), default)
        if not isinstance(found, bool):
            raise self.error(key, f"expected true or false, found {shown(found)}")
        return found

    def text(self, key: str, *, default: str | None = None) -> str:
        """Return a string that is not empty."""
        _, found = self.value(key)
        if found is None:
            return self._default((key,), default)
        if not isinstance(found, str) or not found:
            raise self.error(key, f"expected a text, found {shown(found)}")
        return found

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, or None."""
        _, found = self.value(key)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.error(key, f"expected a list of texts, found {shown(found)}")
        return tuple(found)

    def numbers(self, key: str, *, least: float = 0.0, most: float = MOST, whole: bool = False) -> list[float]:
        """Return a list of numbers from `least` to `most`, integers if `whole`; it may be empty."""
        _, found = self.value(key)
        if not isinstance(found, list):
            raise self.error(key, "missing" if found is None else f"expected a list of numbers, found {shown(found)}")
        if not are_numbers(found, least, most, whole):
            for at, item in enumerate(found):
                problem = number_problem(item, least, most, whole)
                if problem:
                    raise self.error(f"{key}[{at}]", problem)
        return found

    def section(self, key: str) -> Fields | None:
        """Return the mapping at `key`, or None."""
        self._read.add(key)
        found = self._data.get(key)
        if found is None or (isinstance(found, Node) and found.value is None):
            return None
        return Fields(self._places.get(key, self.where), found, f"{self._prefix}{key}.")

    def required_section(self, key: str) -> Fields:
        """Return the mapping at `key`."""
        found = self.section(key)
        if found is None:
            raise self.error(key, "missing")
        return found

    def sections(self, key: str) -> list[Fields]:
        """Return the mappings in the list at `key`."""
        _, found = self.value(key)
        if not isinstance(found, list):
            raise self.error(key, "missing" if found is None else f"expected a list of mappings, found {shown(found)}")
        place = self._places.get(key, self.where)
        return [Fields(place, item, f"{self._prefix}{key}[{at}].") for at, item in enumerate(found)]

    def names(self) -> list[str]:
        """Return the keys of the mapping, as texts."""
        return [str(key) for key in self._data]

    def items(self) -> list[tuple[str, object]]:
        """Return the keys, as texts, and their values without conversion."""
        return [(str(key), value) for key, value in self._data.items()]

    def has(self, key: str) -> bool:
        """Return whether the mapping has the key, even with a null."""
        return key in self._data

    def was_read(self, key: str) -> bool:
        """Return whether the key was read."""
        return key in self._read

    def finish(self) -> None:
        """Raise the error about a key that was not read, if there is one."""
        for key in self._data:
            if str(key) not in self._read:
                raise self.error(str(key), "unknown key")

    def _default(self, keys: tuple[str, ...], default: T | None) -> T:
        if default is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise self.error(keys[0], f"missing{others}")
        return default


def are_numbers(found: list[Any], least: float, most: float, whole: bool) -> bool:
    """Return True only if no entry has a `number_problem`; much faster than a call for each entry."""
    if not found:
        return True
    if not {int, float}.issuperset(map(type, found)) or (whole and float in map(type, found)):
        return False
    return least <= min(found) and max(found) <= most and math.isfinite(sum(found))  # no NaN


def number_problem(found: object, least: float, most: float, whole: bool = False) -> str | None:
    """Return why a value is not a number (an integer, if `whole`) from `least` to `most`; None if it is one."""
    if isinstance(found, bool) or not isinstance(found, int if whole else int | float):
        return f"expected {'an integer' if whole else 'a number'}, found {shown(found)}"
    if not least <= found <= most:
        return f"expected {'an integer' if whole else 'a number'} from {least:g} to {most:g}, found {shown(found)}"
    return None


def _named(data: object) -> str:
    return "a list" if isinstance(data, list) else shown(data)
