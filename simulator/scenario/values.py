"""Scenarios and overrides given as Python values: turned into nodes, they pass the same checks as YAML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from simulator.errors import InputError
from simulator.scenario import nodes
from simulator.scenario.field_types import tagged_at
from simulator.scenario.nodes import Node
from simulator.scenario.schema import Scenario

#: Values that replace those of keys: by dotted key, or as texts `KEY=VALUE` whose values are YAML.
Overrides = Mapping[str, Any] | Sequence[str]

#: Limit of nesting: deeper than any scenario, and shallow enough for Python's stack.
_DEEPEST = 64
#: Limit of an integer's bits, as of the largest float: larger numbers exceed the range of every key.
_MOST_BITS = 1023


def node_of(value: Any, where: str, path: str = "", depth: int = 0) -> Node:
    """Return the node of a Python value: a mapping, a list or tuple, a number, a text, a truth value, a path or None.

    `where` is the place for errors, `path` the dotted key of the value.

    Raises:
        InputError: another kind of value, a key that is no text, or too deep nesting.
    """
    if depth > _DEEPEST:
        raise InputError(f"{where}: nested too deeply, or a value inside itself")
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return _mapping(value, where, path, depth)
    if isinstance(value, list | tuple):
        return Node(where, [node_of(item, where, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)])
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        Node(where, None).fail(path, f"a number of {value.bit_length():,} bits is out of range")
    if isinstance(value, str) and not value.isascii():
        _check_text(value, where, path)
    for kind in (bool, int, float, str):  # true and false are integers, too: they come first
        if isinstance(value, kind):
            return Node(where, kind(value))
    if value is not None:
        kind_of_value = type(value).__name__
        Node(where, None).fail(
            path, f"expected plain values (mappings, lists, numbers, text), found type {kind_of_value}"
        )
    return Node(where, None)


def _check_text(value: str, where: str, path: str) -> None:
    """Raise InputError for a text that cannot be written as UTF-8, such as a file name in another encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: {f'{path}: ' if path else ''}{value!a:.80} is no valid text") from None


def override_all(root: Node, overrides: Overrides) -> None:
    """Apply overrides to the tree of a scenario; errors name a text by `--set`, and a mapping by `overrides`.

    An override that changes the kind of a mapping, such as a scheduler's `policy`, removes the mapping's other keys,
    which do not belong to the new kind. Keys set by other overrides stay.

    Raises:
        InputError: as `nodes.assignment`, `nodes.assign` and `node_of`, or the overrides are neither a mapping nor a
            list of texts.
    """
    places: set[str] = set()
    for path, value, where in _assignments(overrides):
        places.add(where)
        _drop_keys_of_other_kind(root, path, value, places)
        nodes.assign(root, path, value, where)


def _drop_keys_of_other_kind(root: Node, path: str, value: Node, places: Set[str]) -> None:
    """Remove a mapping's keys, except those set at `places`, if `path` is that of its tag and `value` another tag."""
    above, _, key = path.rpartition(".")
    tag, node = tagged_at(Scenario, above.split(".") if above else ()), nodes.found_at(root, above)
    if tag is None or tag.key != key or node is None or isinstance(node.value, list | None):
        return
    entries = node.value if isinstance(node.value, dict) else {}
    if node.value is entries and value.value == (entries[key].value if key in entries else tag.default):
        return
    node.value = {name: entry for name, entry in entries.items() if node.key_where[name] in places}
    node.where = value.where


def _assignments(overrides: Overrides) -> Iterator[tuple[str, Node, str]]:
    """Yield the dotted key, the value and the place of each override."""
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            if not isinstance(key, str) or not all(key.strip().split(".")):
                raise InputError(f"overrides: expected a dotted key such as 'workload.limit', found {key!r:.80}")
            yield key.strip(), node_of(value, "overrides", key), "overrides"
        return
    if isinstance(overrides, str) or not all(isinstance(each, str) for each in overrides):
        raise InputError(
            "overrides: expected a mapping such as {'workload.limit': 100}, or a list of texts such as "
            f"['workload.limit=100']; found {overrides!r:.80}"
        )
    yield from map(nodes.assignment, overrides)


def _mapping(value: Mapping[Any, Any], where: str, path: str, depth: int) -> Node:
    for key in value:
        if not isinstance(key, str) or not key:
            raise InputError(f"{where}: {path + ': ' if path else ''}a key must be text, found {key!r:.80}")
    entries = {key: node_of(item, where, f"{path}.{key}".lstrip("."), depth + 1) for key, item in value.items()}
    return Node(where, entries, dict.fromkeys(entries, where))
