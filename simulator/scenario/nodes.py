"""Scenario files as trees of located nodes, and overrides.

Overrides (`--set a.b=value`) are applied to the tree, before its values are checked: they pass the same checks, and an
error in one names the override.
"""

from __future__ import annotations

from pathlib import Path

from cost_models.files.nodes import Node, compose, read_yaml
from simulator.common.stdin import located
from simulator.errors import InputError

__all__ = ["SHORTHAND", "Node", "assign", "assignment", "found_at", "read_file"]

#: Key of the value NAME of `model: NAME` after an override such as `--set model.weights=fp8` has made it a mapping.
SHORTHAND = "="


def read_file(path: str | Path) -> Node:
    """Read the document of the YAML file at `path`, or of standard input. Raises InputError as `read_yaml` does."""
    file, name = located(path)
    return read_yaml(file, name)


def assignment(text: str) -> tuple[str, Node, str]:
    """Parse one `--set`, `a.b=value`: return its dotted key, its value, which is YAML, and the place for errors.

    Raises:
        InputError: no `=`, an empty key, or a value that is not YAML.
    """
    path, found, value = text.partition("=")
    where = f"--set {text}"
    if not found or not all(path.strip().split(".")):
        raise InputError(f"{where}: expected KEY=VALUE, with a dotted key such as workload.limit=100")
    return path.strip(), compose(value.strip(), where, fixed=where) or Node(where, None), where


def found_at(root: Node, path: str) -> Node | None:
    """Return the node at the dotted key `path` of the tree, if there is one."""
    node: Node | None = root
    for key in path.split(".") if path else ():
        if node is not None and isinstance(node.value, dict):
            node = node.value.get(key)
        elif node is not None and isinstance(node.value, list) and key.isdecimal() and int(key) < len(node.value):
            node = node.value[int(key)]
        else:
            return None
    return node


def assign(root: Node, path: str, value: Node, where: str) -> None:
    """Put `value` at the dotted key `path` of the tree; `where` is the place for errors.

    Raises InputError for a path through a list in which the list's key is not the number of an entry.
    """
    keys = path.strip().split(".")
    node = root
    for key in keys[:-1]:
        node = _step_into(node, key, where, path)
    _assign(node, keys[-1], value, where, path)


def _step_into(node: Node, key: str, where: str, path: str) -> Node:
    if isinstance(node.value, list):
        return node.value[_index(node.value, key, where, path)]
    mapping = _as_mapping(node)
    node.key_where.setdefault(key, where)
    return mapping.setdefault(key, Node(where, {}))


def _assign(node: Node, key: str, value: Node, where: str, path: str) -> None:
    if isinstance(node.value, list):
        node.value[_index(node.value, key, where, path)] = value
    else:
        _as_mapping(node)[key] = value
        node.key_where[key] = where


def _as_mapping(node: Node) -> dict[str, Node]:
    """Return the node's mapping; a scalar becomes the `SHORTHAND` entry of a new one, which the reader expands."""
    if isinstance(node.value, dict):
        return node.value
    assert not isinstance(node.value, list)
    mapping = {} if node.value is None else {SHORTHAND: Node(node.where, node.value)}
    node.value, node.key_where = mapping, dict.fromkeys(mapping, node.where)
    return mapping


def _index(items: list[Node], key: str, where: str, path: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise InputError(f"{where}: {path}: the list has {len(items)} entries, numbered from 0")
    return int(key)
