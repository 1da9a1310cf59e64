"""YAML as a tree of located nodes: every key and value knows its `file:line:column`, so that every error can name it.

Overrides (`--set a.b=value`) are applied to this tree, before anything is typed: they pass the same checks, and an
error in one names the override.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from simulator.errors import InputError
from simulator.stdin import located

Scalar = str | int | float | bool | None

#: The key under which `model: NAME` is kept once an override such as `--set model.weights=fp8` has made it a mapping.
SHORTHAND = "="


@dataclass(slots=True)
class Node:
    """One YAML node. `value` is a scalar, a list of nodes, or a mapping from key to node."""

    where: str
    value: Scalar | list[Node] | dict[str, Node]
    key_where: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the node is, in the words of an error message."""
        names = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", int: "an integer"}
        return names.get(type(self.value), "nothing" if self.value is None else "a number")

    def fail(self, path: str, why: str) -> NoReturn:
        """Raise the error that `path`, at this place, is wrong because of `why`."""
        raise InputError(f"{self.where}: {path}: {why}" if path else f"{self.where}: {why}")


def read_file(path: str | Path) -> Node:
    """The document of the YAML file at `path`.

    Raises:
        InputError: the file cannot be read, is not YAML, has a duplicate key, or holds no mapping.
    """
    file, name = located(path)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from None
    return read_text(text, name)


def read_text(text: str, name: str) -> Node:
    """The document in `text`; errors name it `name`. Raises InputError as `read_file` does."""
    node = _compose(text, name)
    if node is None or not isinstance(node.value, dict):
        raise InputError(f"{name}:1:1: expected a mapping of keys to values, found {node.kind if node else 'nothing'}")
    return node


def override(root: Node, assignment: str) -> None:
    """Apply one `--set` assignment, `a.b=value` (the value is YAML), to the tree.

    Raises:
        InputError: no `=`, an empty path, a value that is not YAML, or a path through something that is no mapping.
    """
    path, found, text = assignment.partition("=")
    where = f"--set {assignment}"
    if not found or not all(path.strip().split(".")):
        raise InputError(f"{where}: expected KEY=VALUE, with a dotted key such as workload.limit=100")
    assign(root, path, _compose(text, where, fixed=where) or Node(where, None), where)


def assign(root: Node, path: str, value: Node, where: str) -> None:
    """Put `value` at the dotted key `path` of the tree; `where` is the place that errors name.

    Raises InputError for a path through something that is no mapping, and for a number that a list does not have.
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
    """The node's mapping; a scalar becomes the `SHORTHAND` entry of one, which the reader knows what to do with."""
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


def _compose(text: str, name: str, fixed: str | None = None) -> Node | None:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else _located(node, name, fixed)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = fixed or (f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name)
        raise InputError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except RecursionError:
        raise InputError(
            f"{fixed or name}: not valid YAML: nested too deeply, or an alias inside what it stands for"
        ) from None
    except yaml.YAMLError as error:
        raise InputError(f"{fixed or name}: not valid YAML: {' '.join(str(error).split())}") from None


def _located(node: yaml.Node, name: str, fixed: str | None) -> Node:
    where = fixed or f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, name, where, fixed)
    if isinstance(node, yaml.SequenceNode):
        return Node(where, [_located(item, name, fixed) for item in node.value])
    return Node(where, _scalar(node, where))


def _mapping(node: yaml.MappingNode, name: str, where: str, fixed: str | None) -> Node:
    values: dict[str, Node] = {}
    key_where: dict[str, str] = {}
    for key_node, value_node in node.value:
        place = fixed or f"{name}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(f"{place}: a key must be text")
        key = str(key_node.value)
        if not key:
            raise InputError(f"{place}: a key must not be empty")
        if key in values:
            raise InputError(f"{place}: {key}: given twice; the first one is at {key_where[key]}")
        values[key], key_where[key] = _located(value_node, name, fixed), place
    return Node(where, values, key_where)


_LOADER = yaml.SafeLoader("")
_TEXT = "tag:yaml.org,2002:str"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_SCALARS = {"str", "int", "float", "bool", "null"}


def _scalar(node: yaml.Node, where: str) -> Scalar:
    tag = node.tag.rpartition(":")[2]
    implied = _LOADER.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
    if node.tag not in (implied, _TEXT):
        raise InputError(
            f"{where}: the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported; leave it out"
        )
    # Dates, custom tags and YAML 1.1's octal and base-60 integers are taken as the text that was written.
    if tag not in _SCALARS or (tag == "int" and not _INTEGER.fullmatch(node.value)):
        return str(node.value)
    try:
        value: Any = _LOADER.construct_object(node)
    except (ValueError, yaml.YAMLError):
        raise InputError(f"{where}: {node.value!r} is not a valid {tag}") from None
    return value  # type: ignore[no-any-return]
