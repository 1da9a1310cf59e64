"""`simulator.load_scenario`: reading and checking scenarios."""

from __future__ import annotations

import operator
from dataclasses import replace
from pathlib import Path

from simulator.api.boundary import boundary
from simulator.errors import InputError
from simulator.scenario import Overrides, Scenario, Source
from simulator.scenario import load_scenario as load


@boundary
def load_scenario(
    scenario: Source,
    overrides: Overrides = (),
    *,
    seed: int | None = None,
    trace: str | Path | None = None,
    trace_format: str | None = None,
) -> Scenario:
    """Read and check a scenario.

    Args:
        scenario: a YAML file, the name of a shipped scenario, a mapping with the same keys, or a loaded scenario.
        overrides: values that replace those of the scenario: a mapping by dotted key, `{"workload.limit": 100}`, or
            texts as after `--set`, `["workload.limit=100"]`.
        seed: the seed of every random stream.
        trace: a file of requests that replaces the workload.
        trace_format: the format of `trace`, where it cannot be detected.

    Raises:
        InputError: the scenario has a mistake in it; the message names the file, the line and the key.
    """
    return read(scenario, overrides, seed, trace, trace_format)


def read(
    scenario: Source,
    overrides: Overrides,
    seed: int | None,
    trace: str | Path | None,
    trace_format: str | None,
) -> Scenario:
    """Read a scenario from the parameters that the functions of the API share, which are those of `load_scenario`."""
    found = load(scenario, overrides, trace=trace, trace_format=trace_format)
    return found if seed is None else replace(found, seed=_checked_seed(seed))


def _checked_seed(value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise InputError(f"seed: expected a whole number of at least 0, found {value!r}")
    return number
