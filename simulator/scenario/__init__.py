"""What is to be run: frozen dataclasses, read from YAML with `file:line:column` errors. No behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.scenario import nodes, reader
from simulator.scenario.extends import extended, read_extended
from simulator.scenario.schema import Scenario

__all__ = ["Scenario", "load_scenario", "parse_scenario"]


#: What a trace takes the place of.
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
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    trace: str | None = None,
    trace_format: str | None = None,
) -> Scenario:
    """The scenario in the YAML file at `path`, with overrides such as `workload.limit=100` applied.

    `trace` takes the place of the scenario's own trace or synthetic workload; its cuts, scale and limits stay.

    Raises:
        InputError: `file:line:column: path: what is wrong`.
    """
    return _typed(read_extended(path), overrides, trace, trace_format)


def parse_scenario(text: str, name: str = "scenario", overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in YAML `text`; errors name it `name`. Raises InputError as `load_scenario` does.

    What it extends is looked for in the working directory.
    """
    return _typed(extended(nodes.read_text(text, name), Path(name)), overrides)


def _typed(
    root: nodes.Node, overrides: Sequence[str], trace: str | None = None, trace_format: str | None = None
) -> Scenario:
    assert isinstance(root.value, dict)
    workload = root.value.get("workload")
    if trace is not None and workload is not None and isinstance(workload.value, dict):
        workload.value = {key: node for key, node in workload.value.items() if key not in _SYNTHETIC}
        workload.value.pop("trace_format", None)
        workload.value["trace"] = nodes.Node("--trace", trace)
        workload.key_where["trace"] = "--trace"
    if trace_format is not None:
        nodes.override(root, f"workload.trace_format={trace_format}")
    for assignment in overrides:
        nodes.override(root, assignment)
    return reader.read(Scenario, root)
