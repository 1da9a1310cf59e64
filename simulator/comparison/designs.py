"""The designs of a comparison: scenarios that must differ in the deployment alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models import load_model
from cost_models.specs.dtypes import kv_type, weight_types
from simulator.comparison.decoding import ACCEPT, BUDGETS, check_laws, is_budget
from simulator.comparison.different import NOTHING, Accepted, Difference, difference_of, kind_of
from simulator.errors import InputError, did_you_mean
from simulator.scenario import Overrides, Scenario, Source, load_scenario
from simulator.scenario.reader import plain
from simulator.scenario.schema import ModelRef
from simulator.study.run import Prepared, prepare
from simulator.study.same_requests import difference
from simulator.workload import RequestTable

#: What must be the same: the requests, what answers them, and what is counted.
_SHARED = ("workload", "model", "seed", "slo", "run.horizon", "run.warmup")


@dataclass(frozen=True, slots=True)
class Design:
    """One of the scenarios that are compared."""

    name: str
    scenario: Scenario


def load_designs(
    sources: Sequence[Source],
    overrides: Overrides = (),
    trace: str | Path | None = None,
    accepted: Accepted = NOTHING,
) -> tuple[Design, ...]:
    """The scenarios, given as `scenario.load_scenario` takes them, with the overrides and the trace for all.

    `accepted` says what may differ beside the deployments.

    Raises:
        InputError: whatever is wrong in one of them; fewer than two; two with the same name; or they differ in more
            than the deployment, with the key that differs.
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
                both = " and ".join(_given(sources[each], each) for each in (number, at))
                raise InputError(f"{both} are both named {design.name}: give each a name of its own")
    for design in designs[1:]:
        _check_shared(design, designs[0], accepted)
        _check_models(design, designs[0], accepted)
        _check_models(designs[0], design, accepted)
    if not accepted.decoding:
        check_laws([design.scenario for design in designs])
    return tuple(designs)


def _given(source: Source, at: int) -> str:
    """How an error names one of the sources."""
    return str(source) if isinstance(source, str | Path) else f"scenario {at + 1}"


def baseline_of(designs: Sequence[Design], name: str | None) -> int:
    """The position of the design to which the others are compared: the first one, or the one of this name.

    Raises InputError if there is none.
    """
    names = [design.name for design in designs]
    if name is None:
        return 0
    if name not in names:
        raise InputError(f"--baseline {name}: no design has that name{did_you_mean(name, names)}")
    return names.index(name)


def prepare_all(designs: Sequence[Design], accepted: Accepted = NOTHING) -> list[Prepared]:
    """Every design with its requests and its deployment in numbers. `accepted` says what may differ of them.

    Raises:
        InputError: whatever is wrong in one of them, or their requests are not the same.
    """
    prepared = [prepare(design.scenario) for design in designs]
    for design, one in zip(designs[1:], prepared[1:], strict=True):
        if not accepted.workload:
            _check_requests(design, one.table, designs[0], prepared[0].table, accepted.decoding)
    return prepared


def found_different(designs: Sequence[Design], prepared: Sequence[Prepared], accepted: Accepted) -> Difference | None:
    """What the designs differ in, of what was accepted to differ; None if in nothing."""
    if not accepted.different:
        return None
    found = difference_of(
        {
            design.name: {key: value for key, value in _shared(design.scenario) if accepted.takes(key)}
            for design in designs
        },
        {design.name: [_words(model) for model in _models(design.scenario)] for design in designs},
        {design.name: one.table for design, one in zip(designs, prepared, strict=True)},
    )
    if found is not None:
        for key in ("model.weights", "model.kv_cache"):
            for one in prepared:
                if found.keys.get(key, {}).get(one.scenario.name) == "auto":
                    found.keys[key][one.scenario.name] = f"auto ({_own_format(key, one)})"
    return found


def _own_format(key: str, prepared: Prepared) -> str:
    """The format that `auto` stands for."""
    if key == "model.kv_cache":
        return kv_type("auto")
    return weight_types(load_model(prepared.scenario.model.name), "auto").linear


def _check_shared(design: Design, first: Design, accepted: Accepted) -> None:
    ours, theirs = dict(_shared(design.scenario)), dict(_shared(first.scenario))
    for key in dict.fromkeys([*theirs, *ours]):
        mine, other = (values.get(key) for values in (ours, theirs))
        if mine != other and not accepted.takes(key) and not (accepted.decoding and is_budget(key)):
            kind = kind_of(key)
            way = ACCEPT if is_budget(key) else f"allow it with --allow-different {kind}" if kind else None
            raise InputError(
                f"{key}: {_shown(mine)} in {design.name}, {_shown(other)} in {first.name}; what is compared must meet "
                f"the same requests under the same rules: let one file extend the other, or --set {key} for all"
                + (f", or {way}" if way else "")
            )


def _check_models(design: Design, other: Design, accepted: Accepted) -> None:
    """Verify that both designs serve the same models, those of single pools too, but for what may differ."""
    served = _models(other.scenario)
    alike = [accepted.alike(model) for model in served]
    for name, model in zip(design.scenario.deployment.pools, _models(design.scenario), strict=True):
        if accepted.alike(model) not in alike:
            raise InputError(
                f"deployment.pools.{name}.model: {_words(model)} in {design.name}, and {other.name} serves "
                f"{'; '.join(_words(each) for each in dict.fromkeys(served))}; what is compared must be the same model "
                "in the same formats: give both designs the same, leave the key out, or allow it with "
                "--allow-different model, weights or kv_cache"
            )


def _models(scenario: Scenario) -> list[ModelRef]:
    """The model of each pool."""
    return [pool.model or scenario.model for pool in scenario.deployment.pools.values()]


def _words(model: ModelRef) -> str:
    return f"{model.name} (weights {model.weights}, kv_cache {model.kv_cache})"


def _shared(scenario: Scenario) -> Iterator[tuple[str, Any]]:
    """The dotted keys of what must be the same, and their values."""
    document = plain(scenario)
    for name in _SHARED:
        value = document
        for key in name.split("."):
            value = value[key]
        yield from flat(name, value)


def flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of plain values under their dotted keys, which begin with `path`."""
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
            f"{design.name} and {first.name} do not serve the same requests: {found}; is something cut or looked up "
            "by one scheduler alone (context_overflow, max_model_len)?"
            + (f" Let none do it, or {ACCEPT}" if apart_from_budgets is None else "")
        )
