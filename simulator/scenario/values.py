"""A scenario, or overrides of one, as Python values: turned into nodes, they pass the same checks as YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.errors import InputError
from simulator.scenario import nodes
from simulator.scenario.nodes import Node

#: What takes the place of keys: values by dotted key, or texts `KEY=VALUE` whose values are YAML.
Overrides = Mapping[str, Any] | Sequence[str]

#: Deeper than any scenario, and shallow enough for Python's stack.
_DEEPEST = 64


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
    for kind in (bool, int, float, str):  # true and false are integers, too: they come first
        if isinstance(value, kind):
            return Node(where, kind(value))
    if value is not None:
        named = f"{path}: " if path else ""
        raise InputError(
            f"{where}: {named}expected plain values (mappings, lists, numbers, text), found a {type(value).__name__}"
        )
    return Node(where, None)


def override_all(root: Node, overrides: Overrides) -> None:
    """Apply overrides to the tree; errors name a text by `--set`, and a mapping by `overrides`.

    Raises:
        InputError: as `nodes.override` and `node_of`, or the overrides are neither a mapping nor a list of texts.
    """
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            if not isinstance(key, str) or not all(key.strip().split(".")):
                raise InputError(f"overrides: expected a dotted key such as 'workload.limit', found {key!r:.80}")
            nodes.assign(root, key, node_of(value, "overrides", key), "overrides")
        return
    if isinstance(overrides, str) or not all(isinstance(each, str) for each in overrides):
        raise InputError(
            "overrides: expected a mapping such as {'workload.limit': 100}, or a list of texts such as "
            f"['workload.limit=100']; found {overrides!r:.80}"
        )
    for assignment in overrides:
        nodes.override(root, assignment)


def _mapping(value: Mapping[Any, Any], where: str, path: str, depth: int) -> Node:
    for key in value:
        if not isinstance(key, str) or not key:
            raise InputError(f"{where}: {path + ': ' if path else ''}a key must be text, found {key!r:.80}")
    entries = {key: node_of(item, where, f"{path}.{key}".lstrip("."), depth + 1) for key, item in value.items()}
    return Node(where, entries, dict.fromkeys(entries, where))
