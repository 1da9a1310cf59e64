"""The designs of a comparison: scenarios that may differ only in the deployment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models import load_model
from cost_models.specs.dtypes import kv_type, weight_types
from simulator.comparison.decoding import ACCEPT, BUDGETS, check_laws, is_budget
from simulator.comparison.differences import (
    NO_DIFFERENCES,
    AllowedDifferences,
    Differences,
    find_differences,
    kind_of,
)
from simulator.errors import InputError, did_you_mean
from simulator.scenario import Overrides, Scenario, Source, load_scenario
from simulator.scenario.plain_values import plain
from simulator.scenario.schema import ModelRef
from simulator.study.prepare import Prepared, prepare
from simulator.study.same_requests import difference
from simulator.workload import RequestTable

#: The keys that must be the same: the requests, the model, and which requests are counted.
_SHARED = ("workload", "model", "seed", "slo", "run.horizon", "run.warmup")


@dataclass(frozen=True, slots=True)
class Design:
    """One of the compared scenarios."""

    name: str
    scenario: Scenario


def load_designs(
    sources: Sequence[Source],
    overrides: Overrides = (),
    trace: str | Path | None = None,
    allowed: AllowedDifferences = NO_DIFFERENCES,
) -> tuple[Design, ...]:
    """Load scenarios, each given as to `scenario.load_scenario`, with the overrides and the trace applied to all.

    `allowed` are the allowed differences other than the deployment.

    Raises:
        InputError: a scenario has a mistake in it, there are fewer than two, two have the same name, or they differ in
            more than is allowed; the message names the key.
    """
    if isinstance(sources, str | Path | Mapping | Scenario) or len(sources) < 2:
        raise InputError("a comparison needs two scenarios or more")
    designs: list[Design] = []
    for source in sources:
        scenario = load_scenario(source, overrides, trace=trace)
        designs.append(Design(scenario.name, scenario))
    for at, design in enumerate(designs):
        for number, other in enumerate(designs[:at]):
            if design.name == other.name:
                both = " and ".join(_source_name(sources[each], each) for each in (number, at))
                raise InputError(f"{both} are both named {design.name}: give each a name of its own")
    for design in designs[1:]:
        _check_shared(design, designs[0], allowed)
        _check_models(design, designs[0], allowed)
        _check_models(designs[0], design, allowed)
    if not allowed.decoding:
        check_laws([design.scenario for design in designs])
    return tuple(designs)


def _source_name(source: Source, at: int) -> str:
    """Return the name of a source for an error message."""
    return str(source) if isinstance(source, str | Path) else f"scenario {at + 1}"


def baseline_of(designs: Sequence[Design], name: str | None) -> int:
    """Return the position of the baseline: the design of this name, or the first one if `name` is None.

    Raises:
        InputError: no design has this name.
    """
    names = [design.name for design in designs]
    if name is None:
        return 0
    if name not in names:
        raise InputError(f"--baseline {name}: no design has that name{did_you_mean(name, names)}")
    return names.index(name)


def prepare_all(designs: Sequence[Design], allowed: AllowedDifferences = NO_DIFFERENCES) -> list[Prepared]:
    """Prepare every design for its run.

    Raises:
        InputError: a scenario has a mistake in it, or the requests differ and `allowed` does not allow it.
    """
    prepared = [prepare(design.scenario) for design in designs]
    for design, one in zip(designs[1:], prepared[1:], strict=True):
        if not allowed.workload:
            _check_requests(design, one.table, designs[0], prepared[0].table, allowed.decoding)
    return prepared


def differences_between(
    designs: Sequence[Design], prepared: Sequence[Prepared], allowed: AllowedDifferences
) -> Differences | None:
    """Return the differences of the allowed kinds; None if there are none."""
    if not allowed.kinds:
        return None
    found = find_differences(
        {
            design.name: {key: value for key, value in _shared_values(design.scenario) if allowed.allows(key)}
            for design in designs
        },
        {design.name: [_describe(model) for model in _models(design.scenario)] for design in designs},
        {design.name: one.table for design, one in zip(designs, prepared, strict=True)},
    )
    if found is not None:
        for key in ("model.weights", "model.kv_cache"):
            for one in prepared:
                if found.keys.get(key, {}).get(one.scenario.name) == "auto":
                    found.keys[key][one.scenario.name] = f"auto ({_format_of_auto(key, one)})"
    return found


def _format_of_auto(key: str, prepared: Prepared) -> str:
    """Return the format that `auto` stands for."""
    if key == "model.kv_cache":
        return kv_type("auto")
    return weight_types(load_model(prepared.scenario.model.name), "auto").linear


def _check_shared(design: Design, first: Design, allowed: AllowedDifferences) -> None:
    ours, theirs = dict(_shared_values(design.scenario)), dict(_shared_values(first.scenario))
    for key in dict.fromkeys([*theirs, *ours]):
        mine, other = (values.get(key) for values in (ours, theirs))
        if mine != other and not allowed.allows(key) and not (allowed.decoding and is_budget(key)):
            kind = kind_of(key)
            way = ACCEPT if is_budget(key) else f"allow it with --allow-different {kind}" if kind else None
            raise InputError(
                f"{key}: {_shown(mine)} in {design.name}, {_shown(other)} in {first.name}; designs are compared over "
                f"the same requests and rules: let one file extend the other, or --set {key} for all"
                + (f", or {way}" if way else "")
            )


def _check_models(design: Design, other: Design, allowed: AllowedDifferences) -> None:
    """Verify that both designs serve the same models in all pools, apart from allowed differences."""
    served = _models(other.scenario)
    comparable = [allowed.comparable(model) for model in served]
    for name, model in zip(design.scenario.deployment.pools, _models(design.scenario), strict=True):
        if allowed.comparable(model) not in comparable:
            raise InputError(
                f"deployment.pools.{name}.model: {_describe(model)} in {design.name}, and {other.name} serves "
                f"{'; '.join(_describe(each) for each in dict.fromkeys(served))}; designs are compared with the same "
                "model in the same formats: give both the same, leave the key out, or allow it with "
                "--allow-different and model, weights or kv_cache"
            )


def _models(scenario: Scenario) -> list[ModelRef]:
    """Return the model of each pool."""
    return [pool.model or scenario.model for pool in scenario.deployment.pools.values()]


def _describe(model: ModelRef) -> str:
    return f"{model.name} (weights {model.weights}, kv_cache {model.kv_cache})"


def _shared_values(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that must be the same, and their values."""
    document = plain(scenario)
    for name in _SHARED:
        value = document
        for key in name.split("."):
            value = value[key]
        yield from flat(name, value)


def flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested plain values under their dotted keys, which begin with `path`."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not entries:
        yield path, value
    for key, inner in entries:
        yield from flat(f"{path}.{key}", inner)


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _check_requests(
    design: Design, table: RequestTable, first: Design, expected: RequestTable, mixed_decoding: bool
) -> None:
    apart_from_budgets = difference(table, expected, BUDGETS)
    found = apart_from_budgets if mixed_decoding else difference(table, expected)
    if found is not None:
        raise InputError(
            f"{design.name} and {first.name} do not serve the same requests: {found}; give all schedulers the same "
            "settings that change requests (context_overflow, max_model_len)"
            + (f", or {ACCEPT}" if apart_from_budgets is None else "")
        )
