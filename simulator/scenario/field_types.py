"""Parts of the types of fields: `Annotated` marks, the keys of a dataclass, the members of a union."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple


class Tagged(NamedTuple):
    """Mark of a choice of dataclasses: the key that holds the `TAG` of the chosen one, and the tag without that key."""

    key: str
    default: str | None = None


def unwrap(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a type into the type without its `Annotated` marks, and the marks."""
    if typing.get_origin(kind) is Annotated:
        base, *marks = typing.get_args(kind)
        return base, tuple(marks)
    return kind, ()


@functools.cache
def fields_of(cls: type) -> dict[str, Any]:
    """Return the type of each key of a dataclass; fields with the metadata `key: False` are no keys."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.metadata.get("key", True)}


def tagged(kind: Any) -> Tagged | None:
    """Return the tag that distinguishes the alternatives of a type, if it has any."""
    base, marks = unwrap(kind)
    own = next((mark for mark in marks if isinstance(mark, Tagged)), None)
    if own is None and typing.get_origin(base) in (typing.Union, types.UnionType):
        return next((found for found in map(tagged, typing.get_args(base)) if found is not None), None)
    return own


def tagged_at(root: type, path: Sequence[str]) -> Tagged | None:
    """Return the tag that distinguishes the alternatives of the mapping at `path` of a `root`, if it has any."""
    return next((found for found in map(tagged, types_at(root, path)) if found is not None), None)


def types_at(root: type, path: Sequence[str]) -> list[Any]:
    """Return the types that the value at `path` of a `root` may have."""
    kinds: list[Any] = [root]
    for name in path:
        kinds = [inner for kind in kinds for inner in _inside(kind, name)]
    return kinds


def words_in(kind: Any) -> list[str]:
    """Return the words that are values of this type: those of a choice, or true and false."""
    base, _ = unwrap(kind)
    if typing.get_origin(base) in (typing.Union, types.UnionType):
        return [word for member in typing.get_args(base) for word in words_in(member)]
    if typing.get_origin(base) is typing.Literal:
        return list(typing.get_args(base))
    return ["true", "false"] if base is bool else []


def _inside(kind: Any, name: str) -> list[Any]:
    """Return the types that the entry `name` of a value of this type may have."""
    base, _ = unwrap(kind)
    origin, inner = typing.get_origin(base), typing.get_args(base)
    if origin in (typing.Union, types.UnionType):
        return [found for member in inner for found in _inside(member, name)]
    if origin is dict:
        return [inner[1]]
    if origin is tuple:
        return [inner[0]]
    if isinstance(base, type) and dataclasses.is_dataclass(base):
        return [fields_of(base)[name]] if name in fields_of(base) else []
    return []


def members(kind: Any) -> list[tuple[Any, str | None]]:
    """Return the dataclasses that a value of this type may be, each with the key of their tags, None without tags."""
    base, mark = unwrap(kind)[0], tagged(kind)
    key = None if mark is None else mark.key
    if typing.get_origin(base) in (typing.Union, types.UnionType):
        return [(each, key or inner) for member in typing.get_args(base) for each, inner in members(member)]
    return [(base, key)] if dataclasses.is_dataclass(base) else []
