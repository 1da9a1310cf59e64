"""Typed reading of one mapping of a YAML or JSON file, with errors that name the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from cost_models.errors import CostModelError

T = TypeVar("T")


class Fields:
    """Typed access to `data`, the mapping at `prefix` of the file `where`. A null counts as missing."""

    def __init__(self, where: str, data: object, prefix: str = "") -> None:
        self.where = where
        self._prefix = prefix
        if not isinstance(data, Mapping):
            place = prefix.rstrip(".") or "top level"
            raise CostModelError(f"{where}: {place}: expected a mapping, found {_show(data)}")
        self._data: Mapping[object, object] = data
        self._read: set[str] = set()

    def error(self, key: str, what: str) -> CostModelError:
        """A mistake at `key`."""
        return CostModelError(f"{self.where}: {self._prefix}{key}: {what}")

    def value(self, *keys: str) -> tuple[str, object]:
        """The first of the alternative `keys` that has a value, and the value: None if none has."""
        self._read.update(keys)
        for key in keys:
            if self._data.get(key) is not None:
                return key, self._data[key]
        return keys[0], None

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """An integer of at least `least`."""
        key, found = self.value(*keys)
        if found is None:
            return self._default(keys, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise self.error(key, f"expected an integer of at least {least}, found {_show(found)}")
        return found

    def number(self, key: str, *, most: float = math.inf, zero: bool = False) -> float:
        """A number above 0 (or 0, if `zero`) and up to `most`."""
        _, found = self.value(key)
        if found is None:
            return self._default((key,), None)
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if not number or not 0 <= found <= most or (found == 0 and not zero):  # type: ignore[operator]
            limit = "" if math.isinf(most) else f" and at most {most:g}"
            least = "of at least" if zero else "above"
            raise self.error(key, f"expected a number {least} 0{limit}, found {_show(found)}")
        return float(found)  # type: ignore[arg-type]

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """true or false."""
        _, found = self.value(key)
        if found is None:
            return self._default((key,), default)
        if not isinstance(found, bool):
            raise self.error(key, f"expected true or false, found {_show(found)}")
        return found

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string that is not empty."""
        _, found = self.value(key)
        if found is None:
            return self._default((key,), default)
        if not isinstance(found, str) or not found:
            raise self.error(key, f"expected a text, found {_show(found)}")
        return found

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None."""
        _, found = self.value(key)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.error(key, f"expected a list of texts, found {_show(found)}")
        return tuple(found)

    def section(self, key: str) -> Fields | None:
        """The mapping at `key`, or None."""
        _, found = self.value(key)
        return None if found is None else Fields(self.where, found, f"{self._prefix}{key}.")

    def required_section(self, key: str) -> Fields:
        """The mapping at `key`."""
        found = self.section(key)
        if found is None:
            raise self.error(key, "missing")
        return found

    def names(self) -> list[str]:
        """The keys of the mapping, as texts."""
        return [str(key) for key in self._data]

    def finish(self) -> None:
        """Raise if the mapping has a key that nothing asked for."""
        for key in self._data:
            if str(key) not in self._read:
                raise self.error(str(key), "unknown key")

    def _default(self, keys: tuple[str, ...], default: T | None) -> T:
        if default is None:
            others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
            raise self.error(keys[0], f"missing{others}")
        return default


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
