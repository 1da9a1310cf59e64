"""`simulator.load_scenario`: scenarios, read and checked."""

from __future__ import annotations

import operator
from dataclasses import replace
from pathlib import Path

from simulator.api.boundary import boundary
from simulator.errors import InputError
from simulator.scenario import Overrides, Scenario, Source
from simulator.scenario import load_scenario as read_scenario


@boundary
def load_scenario(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    trace: str | Path | None = None,
    trace_format: str | None = None,
) -> Scenario:
    """The scenario in a YAML file, of a shipped one's name, or in a mapping with the same keys.

    `overrides` takes the place of keys: a mapping of values by dotted key, `{"workload.limit": 100}`, or texts as after
    `--set`, `["workload.limit=100"]`. `seed` is that of every random stream; `trace` is a file of requests that takes
    the place of the workload, and `trace_format` its format, where that cannot be told from the file.

    Raises:
        InputError: whatever is wrong in it, with the file, the line and the key.
    """
    return loaded(scenario, overrides, seed, trace, trace_format)


def loaded(
    scenario: Source,
    overrides: Overrides,
    seed: int | None,
    trace: str | Path | None,
    trace_format: str | None,
) -> Scenario:
    """The scenario that all functions here take, as `load_scenario` describes it."""
    found = read_scenario(scenario, overrides, trace=trace, trace_format=trace_format)
    return found if seed is None else replace(found, seed=_seed(seed))


def _seed(value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise InputError(f"seed: expected a whole number of at least 0, found {value!r}")
    return number
