"""A scenario, or overrides of one, as Python values: turned into nodes, they pass the same checks as YAML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from simulator.errors import InputError
from simulator.scenario import nodes
from simulator.scenario.field_types import tagged_at
from simulator.scenario.nodes import Node
from simulator.scenario.schema import Scenario

#: What takes the place of keys: values by dotted key, or texts `KEY=VALUE` whose values are YAML.
Overrides = Mapping[str, Any] | Sequence[str]

#: Deeper than any scenario, and shallow enough for Python's stack.
_DEEPEST = 64
#: As many as the largest float has: beyond every range of a key.
_MOST_BITS = 1023


def node_of(value: Any, where: str, path: str = "", depth: int = 0) -> Node:
    """The node of a Python value: a mapping, a list or tuple, a number, a text, a truth value, a path or None.

    `where` stands for the place in errors, `path` is the dotted key of the value.

    Raises:
        InputError: another kind of value, a key that is no text, or nesting without an end.
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
    """Raise InputError for half a character, as of a file name that is not UTF-8: results could not be written."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: {f'{path}: ' if path else ''}{value!a:.80} is no valid text") from None


def override_all(root: Node, overrides: Overrides) -> None:
    """Apply overrides to the tree of a scenario; errors name a text by `--set`, and a mapping by `overrides`.

    One that makes a mapping one of another kind, such as a scheduler of another `policy`, takes away what it had: those
    keys mean nothing there. What other overrides set stays.

    Raises:
        InputError: as `nodes.assignment`, `nodes.assign` and `node_of`, or the overrides are neither a mapping nor a
            list of texts.
    """
    places: set[str] = set()
    for path, value, where in _assignments(overrides):
        places.add(where)
        _leave_kind(root, path, value, places)
        nodes.assign(root, path, value, where)


def _leave_kind(root: Node, path: str, value: Node, places: Set[str]) -> None:
    """Keep only the keys set at the `places`, if `path` is the tag of a mapping and `value` another tag."""
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
    """The dotted key, the value and the place of each override."""
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
