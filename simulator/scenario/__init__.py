"""Scenarios: frozen dataclasses, read from YAML with `file:line:column` errors. No behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from cost_models.files.nodes import parse_yaml
from simulator.common.shipped import find_scenario
from simulator.errors import InputError
from simulator.scenario import nodes, reader
from simulator.scenario.extends import extended, read_extended
from simulator.scenario.schema import Origin, Scenario
from simulator.scenario.values import Overrides, node_of, override_all

__all__ = ["Overrides", "Scenario", "Source", "load_scenario", "parse_scenario"]

#: Forms of a scenario: a path or a shipped one's name, a mapping, or a loaded scenario.
Source = str | Path | Mapping[str, Any] | Scenario

#: Keys of a synthetic workload, which a trace replaces.
_SYNTHETIC = (
    "arrivals",
    "requests",
    "duration",
    "prompt_tokens",
    "output_tokens",
    "correlation",
    "classes",
    "prompt_pool",
)


def load_scenario(
    source: Source,
    overrides: Overrides = (),
    *,
    trace: str | Path | None = None,
    trace_format: str | None = None,
) -> Scenario:
    """Load a scenario and apply overrides. `source` is a YAML file's path, a shipped scenario's name, a mapping, or a
    loaded scenario.

    `overrides` are values by dotted key, `{"workload.limit": 100}`, or texts, `["workload.limit=100"]`.
    `trace` replaces the scenario's own trace or synthetic workload; its time window, scale and limits stay. Files that
    a mapping names or extends are looked for in the working directory.

    Raises:
        InputError: the text is `file:line:column: path: problem`.
    """
    if isinstance(source, Scenario) and not overrides and trace is None and trace_format is None:
        return source
    root, path = _document(source)
    scenario = _typed(root, overrides, trace, trace_format)
    return replace(scenario, origin=Origin(root, None if trace is not None else path))


def _document(source: Source) -> tuple[nodes.Node, Path | None]:
    """Return the tree of a scenario, and its file, None if it is not from a file."""
    if isinstance(source, Scenario):
        return _loaded_document(source)
    if isinstance(source, Mapping):
        return extended(node_of(source, "scenario"), Path("scenario")), None
    if not isinstance(source, str | PathLike):
        raise InputError(
            "scenario: expected a path, the name of a shipped scenario, a mapping or a Scenario, "
            f"found type {type(source).__name__}"
        )
    path = find_scenario(fspath(source))
    return read_extended(path), path


def _loaded_document(scenario: Scenario) -> tuple[nodes.Node, Path | None]:
    """Return the tree from which a loaded scenario was read, with its seed, and its file.

    The scenario's values are not enough: some are defaults that depend on others, such as on a scheduler's version.
    """
    origin = scenario.origin
    if origin is not None:
        root = deepcopy(origin.root)
        nodes.assign(root, "seed", node_of(scenario.seed, "seed"), "seed")
        if reader.read(Scenario, root) == scenario:
            return root, origin.path
    raise InputError(
        f"scenario {scenario.name}: was changed after it was read, so that nothing can be set in it; give all "
        "overrides to load_scenario, or to_dict() of it as the scenario"
    )


def parse_scenario(text: str, name: str = "scenario", overrides: Overrides = ()) -> Scenario:
    """Return the scenario in YAML `text`; errors name it `name`. Raises InputError as `load_scenario` does.

    A file that it extends is looked for in the working directory.
    """
    root = extended(parse_yaml(text, name), Path(name))
    return replace(_typed(root, overrides), origin=Origin(root, None))


def _typed(
    root: nodes.Node,
    overrides: Overrides,
    trace: str | Path | None = None,
    trace_format: str | None = None,
) -> Scenario:
    assert isinstance(root.value, dict)
    workload = root.value.get("workload")
    if trace is not None and workload is not None and isinstance(workload.value, dict):
        workload.value = {key: node for key, node in workload.value.items() if key not in _SYNTHETIC}
        workload.value.pop("trace_format", None)
        workload.value["trace"] = nodes.Node("--trace", fspath(trace))
        workload.key_where["trace"] = "--trace"
    if trace_format is not None:
        override_all(root, [f"workload.trace_format={trace_format}"])
    override_all(root, overrides)
    return reader.read(Scenario, root)
