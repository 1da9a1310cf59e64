"""The types that fields of a file may have, taken apart: marks, the keys of a dataclass, the members of a union."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True, slots=True)
class Tagged:
    """The key that says which of several dataclasses a mapping is, and what it is without that key."""

    key: str
    default: str | None = None


def unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without what it is marked with, and the marks."""
    if typing.get_origin(kind) is Annotated:
        base, *marks = typing.get_args(kind)
        return base, tuple(marks)
    return kind, ()


@functools.cache
def fields_of(cls: type) -> dict[str, Any]:
    """The keys of a dataclass, and the type of each; a field with the metadata `key: False` is none."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.metadata.get("key", True)}


def members(kind: Any) -> list[tuple[Any, str | None]]:
    """The dataclasses that a value of this type may be, each with the key that tells them apart, if one does."""
    base, marks = unwrap(kind)
    key = next((mark.key for mark in marks if isinstance(mark, Tagged)), None)
    if typing.get_origin(base) in (typing.Union, types.UnionType):
        found = [each for member in typing.get_args(base) for each in members(member)]
        return [(each, key or inner) for each, inner in found]
    return [(base, key)] if dataclasses.is_dataclass(base) else []
