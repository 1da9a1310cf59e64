"""Conversion of scenarios to plain values, for JSON and YAML."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from simulator.scenario.field_types import fields_of, unwrap
from simulator.scenario.quantities import FORMATS, Unit


def plain(value: Any) -> Any:
    """Return the mapping of plain values from which `read` would build the dataclass `value` again."""
    if not dataclasses.is_dataclass(value):
        return value
    cls: Any = type(value)
    result: dict[str, Any] = {cls.TAG_KEY: cls.TAG} if hasattr(cls, "TAG") else {}
    for name, hint in fields_of(cls).items():
        result[name] = _plain(getattr(value, name), hint)
    return result


def _plain(value: Any, hint: Any) -> Any:
    base, marks = unwrap(hint)
    if typing.get_origin(base) in (typing.Union, types.UnionType):
        return _plain_member(value, [member for member in typing.get_args(base) if member is not type(None)])
    unit = next((m for m in marks if isinstance(m, Unit)), None)
    if unit is not None:
        return FORMATS[unit.name](value)
    if isinstance(value, tuple):
        inner = typing.get_args(base)
        kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is Ellipsis else inner
        return [_plain(item, kind) for item, kind in zip(value, kinds, strict=True)]
    if isinstance(value, dict):
        return {key: _plain(item, typing.get_args(base)[1]) for key, item in value.items()}
    return plain(value)


def _plain_member(value: Any, members: list[Any]) -> Any:
    """Return a value of a union in plain form: an optional value, one of several dataclasses, a word or a duration."""
    if value is None:
        return None
    if len(members) == 1:
        return _plain(value, members[0])
    united = [member for member in members if unwrap(member)[1]]
    return _plain(value, united[0]) if united and isinstance(value, int) else plain(value)
