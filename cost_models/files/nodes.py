"""YAML as a tree of located nodes: every key and value has its `file:line:column` for errors.

Only plain documents are read: mappings with texts as keys, lists, texts, numbers, truth values and nulls. The depth and
the size of a tree are limited, with aliases expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from cost_models.errors import InputError, shown
from cost_models.files.documents import DEEPEST, read_text

Scalar = str | int | float | bool | None

#: Limits that no valid YAML file exceeds: values (with aliases expanded), bytes, and digits of a whole number (with
#: more than 308 it is not a finite float).
_MOST_NODES = 200_000
_LARGEST = 16 << 20
_MOST_DIGITS = 300


@dataclass(slots=True)
class Node:
    """One YAML node. `value` is a scalar, a list of nodes, or a mapping from key to node."""

    where: str
    value: Scalar | list[Node] | dict[str, Node]
    key_where: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of the node, as named in error messages."""
        names = {dict: "a mapping", list: "a list", str: "text", bool: "a boolean", int: "an integer"}
        return names.get(type(self.value), "nothing" if self.value is None else "a number")

    def fail(self, path: str, why: str) -> NoReturn:
        """Raise the error that `path`, at this place, is wrong because of `why`."""
        raise InputError(f"{self.where}: {path}: {why}" if path else f"{self.where}: {why}")

    def plain(self) -> Any:
        """Return the value without places: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value


def read_yaml(path: Path, name: str | None = None) -> Node:
    """Return the mapping in the YAML file at `path`; errors name it `name`, or else its path.

    Raises:
        InputError: the file cannot be read, is not YAML, has a duplicate key, or is not a mapping.
    """
    return parse_yaml(read_text(path, _LARGEST, name), name or str(path))


def parse_yaml(text: str, name: str) -> Node:
    """Return the mapping in YAML `text`; errors name it `name`. Raises InputError as `read_yaml` does."""
    node = compose(text, name)
    if node is None or not isinstance(node.value, dict):
        raise InputError(f"{name}:1:1: expected a mapping of keys to values, found {node.kind if node else 'nothing'}")
    return node


def compose(text: str, name: str, fixed: str | None = None) -> Node | None:
    """Return the document in YAML `text`, None if there is none. Places are those in the file `name`, or `fixed`.

    Raises:
        InputError: it is not YAML, has a duplicate key or a tag, or is nested too deeply or too large.
    """
    try:
        return _Composer(name, fixed).document(yaml.parse(text, Loader=_PARSER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = fixed or (f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name)
        raise InputError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{fixed or name}: not valid YAML: {' '.join(str(error).split())}") from None


#: The parser in C yields the same events as the one in Python, several times faster.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read, the key whose value comes next, and the anchor of the list or mapping."""

    node: Node
    anchor: str | None
    key: str | None = None


class _Composer:
    """Builder of the nodes of one document from its events."""

    def __init__(self, name: str, fixed: str | None) -> None:
        self._name, self._fixed = name, fixed
        self._open: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}  # None until the end of the anchored node
        self._nodes = 0

    def document(self, events: Iterator[yaml.Event]) -> Node | None:
        """Return the document of these events."""
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise InputError(f"{self._where(event)}: a second document; the file may have one")
            finished = self._finished(event)
            if finished is not None and not self._place(finished):
                root = finished
        return root

    def _finished(self, event: yaml.Event) -> Node | None:
        """Return the node that ends with the event, if any."""
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event)
        if isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        if isinstance(event, yaml.CollectionEndEvent):
            ended = self._open.pop()
            if ended.anchor is not None:
                self._anchors[ended.anchor] = ended.node
            return ended.node
        return None

    def _scalar(self, event: yaml.ScalarEvent) -> Node | None:
        where = self._where(event)
        if self._expects_key():
            self._key(event.value, where)
            return None
        node = self._counted(Node(where, _value(event, where)))
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        where = self._where(event)
        if self._expects_key():
            raise InputError(f"{where}: a key must be text")
        if event.tag not in _COLLECTIONS:
            raise _tagged(event.tag, where)
        if len(self._open) == DEEPEST:
            raise InputError(f"{where}: nested more than {DEEPEST} levels deep")
        node = self._counted(Node(where, {} if isinstance(event, yaml.MappingStartEvent) else []))
        self._open.append(_Open(node, event.anchor))
        if event.anchor is not None:
            self._anchors[event.anchor] = None

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].node.value, dict) and self._open[-1].key is None

    def _key(self, key: str, where: str) -> None:
        node = self._open[-1].node
        assert isinstance(node.value, dict)
        if not key:
            raise InputError(f"{where}: a key must not be empty")
        if key in node.value:
            raise InputError(f"{where}: {shown_key(key)}: given twice; the first one is at {node.key_where[key]}")
        self._open[-1].key, node.key_where[key] = key, where

    def _place(self, node: Node) -> bool:
        """Add a node to its parent; False if it is the document."""
        if not self._open:
            return False
        above = self._open[-1]
        if isinstance(above.node.value, list):
            above.node.value.append(node)
        else:
            assert isinstance(above.node.value, dict) and above.key is not None
            above.node.value[above.key], above.key = node, None
        return True

    def _copy(self, event: yaml.AliasEvent) -> Node:
        """Return a copy of the node that an alias names: an override in one place must not change another."""
        where = self._where(event)
        if self._expects_key():
            raise InputError(f"{where}: a key must be text, not an alias")
        if event.anchor not in self._anchors:
            raise InputError(f"{where}: *{event.anchor}: no such anchor above")
        node = self._anchors[event.anchor]
        if node is None:
            raise InputError(f"{where}: *{event.anchor}: an alias inside its own anchor")
        return self._copied(node, len(self._open), where)

    def _copied(self, node: Node, depth: int, where: str) -> Node:
        if depth > DEEPEST:
            raise InputError(f"{where}: nested more than {DEEPEST} levels deep")
        copy = self._counted(Node(node.where, node.value, dict(node.key_where)))
        if isinstance(node.value, dict):
            copy.value = {key: self._copied(item, depth + 1, where) for key, item in node.value.items()}
        elif isinstance(node.value, list):
            copy.value = [self._copied(item, depth + 1, where) for item in node.value]
        return copy

    def _counted(self, node: Node) -> Node:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise InputError(f"{node.where}: more than {_MOST_NODES} values, with aliases expanded")
        return node

    def _where(self, event: yaml.Event) -> str:
        mark: Any = event.start_mark
        return self._fixed or f"{self._name}:{mark.line + 1}:{mark.column + 1}"


def shown_key(key: str) -> str:
    """Return a key for an error message: shortened if it is long, quoted if it does not fit on one line."""
    return key if len(key) <= _LONGEST_KEY and key.isprintable() else shown(key)


_LONGEST_KEY = 60
_RULES = yaml.SafeLoader("")
_TEXT = "tag:yaml.org,2002:str"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_SCALARS = {"str", "int", "float", "bool", "null"}
_COLLECTIONS = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


def _tagged(tag: str | None, where: str) -> InputError:
    named = str(tag).replace("tag:yaml.org,2002:", "!!")
    return InputError(f"{where}: the tag {shown_key(named)} is not supported; leave it out")


def _value(event: yaml.ScalarEvent, where: str) -> Scalar:
    implied = _RULES.resolve(yaml.ScalarNode, event.value, (True, False))  # type: ignore[no-untyped-call]
    tag = event.tag
    if tag is None or tag == "!":
        tag = _RULES.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
    if tag not in (implied, _TEXT):
        raise _tagged(tag, where)
    kind = tag.rpartition(":")[2]
    # Dates, custom tags and YAML 1.1's octal and base-60 integers are taken as the text that was written.
    if kind not in _SCALARS or (kind == "int" and not _INTEGER.fullmatch(event.value)):
        return str(event.value)
    if kind == "int" and len(event.value) > _MOST_DIGITS:
        raise InputError(f"{where}: {shown(event.value)}: a whole number of {len(event.value)} digits is too large")
    try:
        value: Any = _RULES.construct_object(yaml.ScalarNode(tag, event.value))
    except (ValueError, yaml.YAMLError):
        raise InputError(f"{where}: {shown(event.value)} is not a valid {kind}") from None
    return value  # type: ignore[no-any-return]
