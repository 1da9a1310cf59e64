"""`extends: FILE` at the top of a scenario: the extended file's keys, changed by those of the extending file.

Mappings are merged key by key; any other value replaces the inherited one, and `null` removes an inherited key. A
mapping with a tag, such as `policy`, replaces an inherited mapping with another tag, whose keys do not belong to the
new kind. The extended file may extend a third one. Every key keeps the place where it was written, so that an error
names its file.
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
    """Read the scenario file at `path`, merged with the file that it extends, if any.

    Raises:
        InputError: as `nodes.read_file`; the extended file does not exist, or the files extend each other in a circle.
    """
    return extended(read_file(path), Path(path), ())


def extended(root: Node, path: Path, above: tuple[Path, ...] = ()) -> Node:
    """Return `root`, the document of the file `path`, merged with the file that it extends, if any.

    `above` are the files that extend this one. Raises InputError as `read_extended` does.
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
    """Find the extended file: beside the extending one, in the working directory, or among the shipped scenarios."""
    name = str(named.value)
    if os.path.isfile(folder / name):
        return folder / name
    try:
        return find_scenario(name)
    except InputError as error:
        named.fail(_KEY, str(error))


def _place_trace(base: Node, folder: Path) -> None:
    """Add `folder` to the path of the trace in `base` if the trace is in it, so that other folders' files find it."""
    assert isinstance(base.value, dict)
    workload = base.value.get("workload")
    trace = workload.value.get("trace") if workload is not None and isinstance(workload.value, dict) else None
    if trace is not None and isinstance(trace.value, str) and os.path.isfile(folder / trace.value):
        trace.value = str(folder / trace.value)


def _merged(base: Node, top: Node, path: tuple[str, ...]) -> Node:
    """Return the keys of `base`, changed by those of `top`; both are mappings at `path` of a scenario."""
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
    """Return whether two values are mappings to be merged: `node` has no tag, or the same as `below`."""
    if not (isinstance(below.value, dict) and isinstance(node.value, dict)):
        return False
    tag = tagged_at(Scenario, path)
    own = None if tag is None else node.value.get(tag.key)
    if tag is None or own is None or not isinstance(own.value, str):
        return True
    inherited = below.value.get(tag.key)
    return inherited is not None and inherited.value == own.value
