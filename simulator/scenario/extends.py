"""`extends: FILE` at the top of a scenario: what the file says, and the differences in this one.

Mappings are merged key by key; anything else in this file takes the place of what is there, and `null` takes an
inherited key away. A mapping that says of what kind it is, such as another `policy`, takes the place of one of another
kind, whose keys would mean nothing there. The other file may extend a third one. Every key keeps the place at which it
was written, so that an error names the file in which it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from simulator.common.shipped import find_scenario
from simulator.errors import InputError
from simulator.scenario.field_types import tagged_at
from simulator.scenario.nodes import Node, read_file
from simulator.scenario.places import place_files
from simulator.scenario.schema import Scenario

_KEY = "extends"


def read_extended(path: str | Path) -> Node:
    """The document of the scenario file at `path`, on top of the one that it extends, if it does.

    Raises:
        InputError: as `nodes.read_file`; the extended file does not exist, or the files extend each other in a circle.
    """
    return extended(read_file(path), Path(path), ())


def extended(root: Node, path: Path, above: tuple[Path, ...] = ()) -> Node:
    """`root`, the document of the file `path`, on top of what it extends; `above` are the files that extend it.

    Raises InputError as `read_extended` does.
    """
    assert isinstance(root.value, dict)
    place_files(root, path.parent)
    if _KEY not in root.value:
        return root
    named = root.value.pop(_KEY)
    if not isinstance(named.value, str) or not named.value:
        named.fail(_KEY, f"expected the path of a scenario file, found {named.kind}")
    chain = (*above, path.resolve())
    other = _find(named, path.parent)
    if other.resolve() in chain:
        circle = [*chain[chain.index(other.resolve()) :], other.resolve()]
        named.fail(_KEY, f"the files extend each other in a circle: {' -> '.join(file.name for file in circle)}")
    base = extended(read_file(other), other, chain)
    if other.parent.resolve() != path.parent.resolve():
        _place_trace(base, other.parent)
    return _merged(base, root, ())


def _find(named: Node, folder: Path) -> Path:
    """Beside the file that names it, in the working directory, or among the shipped scenarios."""
    name = str(named.value)
    if os.path.isfile(folder / name):
        return folder / name
    try:
        return find_scenario(name)
    except InputError as error:
        named.fail(_KEY, str(error))


def _place_trace(base: Node, folder: Path) -> None:
    """A trace that lies beside the file that names it is found from another folder, too."""
    assert isinstance(base.value, dict)
    workload = base.value.get("workload")
    trace = workload.value.get("trace") if workload is not None and isinstance(workload.value, dict) else None
    if trace is not None and isinstance(trace.value, str) and os.path.isfile(folder / trace.value):
        trace.value = str(folder / trace.value)


def _merged(base: Node, top: Node, path: tuple[str, ...]) -> Node:
    """`top` on top of `base`, both mappings at `path` of a scenario."""
    assert isinstance(base.value, dict) and isinstance(top.value, dict)
    values, key_where = dict(base.value), dict(base.key_where)
    for key, node in top.value.items():
        below = values.get(key)
        if below is not None and node.value is None:
            del values[key], key_where[key]
            continue
        values[key] = node
        if below is not None and _alike(below, node, inside := (*path, key)):
            values[key] = _merged(below, node, inside)
        key_where[key] = top.key_where[key]
    return Node(top.where, values, key_where)


def _alike(below: Node, node: Node, path: tuple[str, ...]) -> bool:
    """Whether two values are mappings that may be merged: the upper one names no kind, or that of the lower one."""
    if not (isinstance(below.value, dict) and isinstance(node.value, dict)):
        return False
    tag = tagged_at(Scenario, path)
    own = None if tag is None else node.value.get(tag.key)
    if tag is None or own is None or not isinstance(own.value, str):
        return True
    inherited = below.value.get(tag.key)
    return inherited is not None and inherited.value == own.value
