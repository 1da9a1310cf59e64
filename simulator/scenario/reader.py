"""Typed reading of nodes into frozen dataclasses. No value is converted to another type, and no key is ignored.

The types of fields: `int`, `float`, `bool`, `str`, `Literal`, a dataclass, `tuple[T, ...]`, `tuple[A, B]`,
`dict[str, T]`, `T | None`, and these, marked with `Annotated`:

- `Range`: bounds of a number;
- `Duration`, `Size`, `Bandwidth`: integers written with a unit (`250ms`, `80GiB`, `25GB/s`);
- `A | dict[str, A]`: one value for all, or one by name;
- `Tagged("kind")`: one of several dataclasses, chosen by the key `kind`, whose values are the classes' `TAG`.

A dataclass with `FROM_SCALAR = "name"` may be written as the bare value of that field; `EXCLUDES` has, by key, other
keys that cannot be combined with it, and the reasons. Checks of several fields are in `__post_init__`, which raises
ValueError with a text such as `max: must be at least min`. A field with the metadata `key: False` is no key.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from decimal import Decimal
from typing import Any, Literal, TypeVar

from cost_models.errors import shown
from simulator.errors import did_you_mean
from simulator.scenario.field_types import Tagged, fields_of, unwrap
from simulator.scenario.keys import advice
from simulator.scenario.nodes import SHORTHAND, Node
from simulator.scenario.quantities import Range, Unit
from simulator.scenario.units import (
    parse_bandwidth,
    parse_duration,
    parse_size,
)

T = TypeVar("T")


_PARSERS = {"duration": parse_duration, "size": parse_size, "bandwidth": parse_bandwidth}
_EXAMPLES = {"duration": "250ms or 1.5s", "size": "80GiB or 4GB", "bandwidth": "25GB/s or, in bits, 200Gb/s"}


def read(cls: type[T], node: Node) -> T:
    """Read `node` as the dataclass `cls`.

    Raises:
        InputError: the text is `file:line:column: path: problem`, of the first problem found.
    """
    try:
        return typing.cast(T, _read(cls, (), node, ""))
    except _UnknownKeyError as error:
        unknown = error
    hint = advice(cls, node, unknown.path, unknown.key, unknown.cls)
    return Node(unknown.where, None).fail(_join(unknown.path, unknown.key), f"unknown key{hint}")


class _UnknownKeyError(ValueError):
    """Error about `key`, written at `where`, which is no key of `cls`, the type of the mapping at `path`."""

    def __init__(self, where: str, path: str, key: str, cls: type) -> None:
        super().__init__(key)
        self.where, self.path, self.key, self.cls = where, path, key, cls


def alternatives(choice: Any) -> tuple[Any, ...]:
    """Return the dataclasses of a tagged choice, such as `schema.Router`; each has its `TAG`."""
    base, _ = unwrap(choice)
    return typing.get_args(base) or (base,)


def tags(choice: Any) -> list[str]:
    """Return the names of the alternatives of a tagged choice."""
    return [member.TAG for member in alternatives(choice)]


def _read(kind: Any, marks: tuple[Any, ...], node: Node, path: str) -> Any:
    base, more = unwrap(kind)
    marks = marks + more
    origin = typing.get_origin(base)
    tagged = next((m for m in marks if isinstance(m, Tagged)), None)
    if tagged is not None and dataclasses.is_dataclass(base):
        return _tagged([base], tagged, node, path)
    if origin in (typing.Union, types.UnionType):
        return _union(base, marks, node, path)
    if origin is Literal:
        return _literal(typing.get_args(base), node, path)
    if origin is tuple:
        return _sequence(typing.get_args(base), node, path)
    if origin is dict:
        return _entries(typing.get_args(base)[1], node, path)
    if dataclasses.is_dataclass(base):
        return _mapping(typing.cast(type, base), node, path, None)
    return _scalar(base, marks, node, path)


def _union(union: Any, marks: tuple[Any, ...], node: Node, path: str) -> Any:
    members = [m for m in typing.get_args(union) if m is not type(None)]
    if node.value is None and len(members) < len(typing.get_args(union)):
        return None
    tagged = next((m for m in marks if isinstance(m, Tagged)), None)
    if tagged is not None:
        return _tagged(members, tagged, node, path)
    if isinstance(node.value, dict):
        by_name = [m for m in members if typing.get_origin(unwrap(m)[0]) is dict]
        members = by_name or members
    words = [m for m in members if typing.get_origin(unwrap(m)[0]) is Literal]
    if words and isinstance(node.value, str) and node.value in typing.get_args(words[0]):
        return node.value
    rest = [m for m in members if m not in words]
    try:
        return _read(rest[0], (), node, path)
    except ValueError as error:
        if words and isinstance(node.value, str):
            node.fail(
                path,
                f"expected {' or '.join(typing.get_args(words[0]))}, or a {_named(rest[0])}; found {shown(node.value)}",
            )
        raise error


def _tagged(members: list[Any], tagged: Tagged, node: Node, path: str) -> Any:
    key = tagged.key
    if not isinstance(node.value, dict):
        short = next((m for m in members if getattr(m, "FROM_SCALAR", None)), None)
        if short is not None and not isinstance(node.value, list | None):
            return _mapping(short, node, path, None)
        node.fail(path, f"expected a mapping with the key {key}, found {node.kind}")
    known = {m.TAG: m for m in members}
    chosen = node.value.get(key) or Node(node.where, tagged.default)
    if chosen.value is None:
        node.fail(path, f"needs the key {key}: {', '.join(known)}")
    if not isinstance(chosen.value, str):
        chosen.fail(_join(path, key), f"expected one of {', '.join(known)}, found {_found(chosen)}")
    if chosen.value not in known:
        chosen.fail(_join(path, key), f"{shown(chosen.value)} is not known{did_you_mean(chosen.value, known)}")
    return _mapping(known[chosen.value], node, path, key)


def _literal(values: tuple[Any, ...], node: Node, path: str) -> Any:
    if not isinstance(node.value, str):
        node.fail(path, f"expected one of {', '.join(values)}, found {_found(node)}")
    if node.value not in values:
        node.fail(path, f"{shown(node.value)} is not known{did_you_mean(node.value, values)}")
    return node.value


def _sequence(kinds: tuple[Any, ...], node: Node, path: str) -> tuple[Any, ...]:
    if not isinstance(node.value, list):
        node.fail(path, f"expected a list, found {node.kind}")
    if len(kinds) != 2 or kinds[1] is not Ellipsis:
        if len(node.value) != len(kinds):
            node.fail(path, f"expected {len(kinds)} entries, found {len(node.value)}")
        return tuple(_read(k, (), n, f"{path}[{i}]") for i, (k, n) in enumerate(zip(kinds, node.value, strict=True)))
    return tuple(_read(kinds[0], (), item, f"{path}[{i}]") for i, item in enumerate(node.value))


def _entries(kind: Any, node: Node, path: str) -> dict[str, Any]:
    if not isinstance(node.value, dict):
        node.fail(path, f"expected a mapping, found {node.kind}")
    if SHORTHAND in node.value:
        node.value[SHORTHAND].fail(path, f"is {node.value[SHORTHAND].kind}, so no key can be set inside it")
    written = [key for key, value in node.value.items() if value.where != node.key_where[key]]
    for key, value in node.value.items():
        missing = _missing(kind, value.value) if written and key not in written else []
        if missing:  # an override made this entry: its name may be misspelt
            value.fail(_join(path, key), f"is new, and lacks {', '.join(missing)}{did_you_mean(key, written)}")
    return {key: _read(kind, (), value, _join(path, key)) for key, value in node.value.items()}


def _mapping(cls: type, node: Node, path: str, tag_key: str | None) -> Any:
    node = _expand(cls, node, path)
    assert isinstance(node.value, dict)
    hints = fields_of(cls)
    _check_alone(cls, node, path)
    values = {}
    for key, value in node.value.items():
        if key == tag_key:
            continue
        if key not in hints:
            reserved: dict[str, str] = getattr(cls, "RESERVED", {})
            if key in reserved:
                Node(node.key_where[key], None).fail(_join(path, key), reserved[key])
            raise _UnknownKeyError(node.key_where[key], path, key, cls)
        values[key] = _read(hints[key], (), value, _join(path, key))
    if missing := _missing(cls, values):
        node.fail(path, f"missing {', '.join(missing)}")
    try:
        return cls(**values)
    except ValueError as error:  # a check across fields, in __post_init__
        field, colon, why = str(error).partition(": ")
        if colon and field in node.value:
            node.value[field].fail(_join(path, field), why)
        return node.fail(path, str(error))


def _check_alone(cls: Any, node: Node, path: str) -> None:
    """Refuse keys that cannot be combined with another one, unless they have their default values."""
    assert isinstance(node.value, dict)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    given = {key: value for key, value in node.value.items() if value.value not in (None, defaults.get(key))}
    for key, others in getattr(cls, "EXCLUDES", {}).items():
        for name in others if key in given else ():
            if name in given:
                given[name].fail(_join(path, name), others[name])


def _expand(cls: type, node: Node, path: str) -> Node:
    """Return the node as a mapping of `cls`; a bare value becomes the field `FROM_SCALAR`."""
    short = getattr(cls, "FROM_SCALAR", None)
    if isinstance(node.value, dict):
        if SHORTHAND not in node.value:
            return node
        if short is None:
            node.value[SHORTHAND].fail(path, f"is {node.value[SHORTHAND].kind}, so no key can be set inside it")
        entries = {(short if key == SHORTHAND else key): value for key, value in node.value.items()}
        return Node(node.where, entries, {**node.key_where, short: node.where})
    if short is None or isinstance(node.value, list | None):
        node.fail(path, f"expected {'' if short is None else f'a {short} or '}a mapping, found {node.kind}")
    return Node(node.where, {short: node}, {short: node.where})


def _scalar(kind: type, marks: tuple[Any, ...], node: Node, path: str) -> Any:
    unit = next((m for m in marks if isinstance(m, Unit)), None)
    if unit is not None:
        value: Any = _quantity(unit, node, path)
    elif kind is float and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        value = _float(node.value)
    elif type(node.value) is kind:
        value = node.value
    else:
        wanted = {int: "an integer", float: "a number", bool: "true or false", str: "text"}[kind]
        node.fail(path, f"expected {wanted}, found {_found(node)}")
    if kind is float and not math.isfinite(value):
        node.fail(path, f"expected a finite number, found {value}")
    for mark in marks:
        problem = mark.problem(value, unit) if isinstance(mark, Range) else None
        if problem:
            node.fail(path, f"{problem}, found {_brief(node)}")
    return value


def _quantity(unit: Unit, node: Node, path: str) -> int:
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        node.fail(path, f"a {unit.name} needs a unit, such as {_EXAMPLES[unit.name]}; found {_brief(node)}")
    if not isinstance(node.value, str):
        node.fail(path, f"expected a {unit.name}, found {node.kind}")
    try:
        return _PARSERS[unit.name](node.value)
    except ValueError as error:
        node.fail(path, str(error))


def _found(node: Node) -> str:
    """Return the value for an error message, with a correction if YAML read a number as text."""
    if isinstance(node.value, dict | list) or node.value is None:
        return node.kind
    text = f"{node.kind} {shown(node.value)}"
    if isinstance(node.value, str):
        try:
            number = float(node.value)
        except ValueError:
            return text
        if math.isfinite(number):
            return f"{text}, which YAML reads as text; write {Decimal(repr(number)).normalize():f}"
    return text


def _named(kind: Any) -> str:
    base, marks = unwrap(kind)
    unit = next((m for m in marks if isinstance(m, Unit)), None)
    if unit and unit.name == "duration":
        return "duration such as 250ms or 1.5s"
    return "number" if base in (int, float) and unit is None else "value"


def _missing(cls: Any, entries: Any) -> list[str]:
    """Return the required keys of a `cls` that are not among the entries."""
    if not dataclasses.is_dataclass(cls) or not isinstance(entries, dict):
        return []
    without = dataclasses.MISSING
    needed = [f.name for f in dataclasses.fields(cls) if f.default is without and f.default_factory is without]
    return [name for name in needed if name not in entries]


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _float(value: float) -> float:
    """Return the number as a float; infinity for a whole number that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _brief(node: Node) -> str:
    """Return the value as it was written, shortened if long."""
    return shown(node.value).strip("'\"")
