"""Files of cost models that a scenario names by a relative path: looked up beside the scenario first.

Traces and recorded acceptance are found later, when they are read (`common.shipped.file_finder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.scenario.nodes import Node

_POOL = ("deployment", "pools", "*")
#: Keys that may name such a file, or a shipped one; `*` is any name.
_KEYS = (
    ("model",),
    ("model", "name"),
    *(
        (*_POOL, *keys)
        for keys in (
            ("gpu",),
            ("model",),
            ("model", "name"),
            ("cost_model", "calibration"),
            ("cost_model", "host"),
            ("speculation", "model"),
            ("speculation", "gpu"),
        )
    ),
)
_SUFFIXES = (".json", ".yaml", ".yml")


def place_files(root: Node, folder: Path) -> None:
    """Add `folder` to those paths in `root`, the document of a file in `folder`, that are of a file there."""
    for keys in _KEYS:
        for node in _at(root, keys):
            if isinstance(node.value, str) and _is_there(folder / node.value):
                node.value = str(folder / node.value)


def _at(node: Node, keys: tuple[str, ...]) -> Iterator[Node]:
    """Yield the nodes at `keys`."""
    if not keys:
        yield node
    elif isinstance(node.value, dict):
        below = node.value.values() if keys[0] == "*" else filter(None, [node.value.get(keys[0])])
        for child in below:
            yield from _at(child, keys[1:])


def _is_there(path: Path) -> bool:
    """Return whether `path` is of a file for a cost model, or of the folder of a model."""
    return (path.suffix in _SUFFIXES and path.is_file()) or (path / "config.json").is_file()
