"""Classes of a scenario's values: frozen dataclasses that share the methods which compare, hash and print them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def setting(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return the decorator of a class of values: a frozen dataclass with slots.

    `dataclass` would compile the methods that compare, hash and print for each class, a tenth of the start of a run.
    """

    def decorate(cls: type[T]) -> type[T]:
        for name, method in _SHARED.items():
            if name not in vars(cls):
                setattr(cls, name, method)
        return dataclass(frozen=True, slots=True, kw_only=kw_only, eq=False, repr=False)(cls)

    return decorate


@functools.cache
def _names(cls: type[Any], compared: bool) -> tuple[str, ...]:
    """Return the names of all fields, or of those that are compared."""
    return tuple(each.name for each in fields(cls) if each.compare or not compared)


def _compared(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in _names(value.__class__, True))


def _equal(self: Any, other: object) -> bool:
    return _compared(self) == _compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _text(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in _names(self.__class__, False))
    return f"{type(self).__qualname__}({', '.join(shown)})"


_SHARED = {"__eq__": _equal, "__hash__": _hash, "__repr__": _text}
