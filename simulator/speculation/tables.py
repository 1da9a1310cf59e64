"""Measured acceptance by position, shipped as `tables/*.yaml`: a file a method, with these fields.

method: as in a scenario.
defaults: the table for each model (by its shipped name), and for `any` other.
tables: by name,
    model: the target; a shipped name where there is one.
    dataset: the prompts.
    cumulative: the share of steps in which drafts 1 to i are all accepted, for i = 1, 2, ...
    source: the publication, and its values.
    derivation: the computation of the rates by position, where other values were published.
    match_rate: of n-gram, the share of steps with drafts, where the rates are those of such steps alone; `unknown`
        where it was not published. Without it the rates are of all steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cost_models.errors import InputError
from cost_models.files.fields import Fields
from cost_models.files.nodes import read_yaml
from cost_models.library import load_model
from simulator.errors import did_you_mean

_FOLDER = Path(__file__).resolve().parent / "tables"
_ANY = "any"


@dataclass(frozen=True, slots=True)
class AcceptanceTable:
    """Cumulative acceptance rates by position, and their source. `derivation` is "" if they were published.

    The rates are of steps with drafts, whose share of all steps is `match_rate`, None if it is not known.
    """

    name: str
    method: str
    model: str
    dataset: str
    cumulative: tuple[float, ...]
    source: str
    derivation: str = ""
    match_rate: float | None = 1.0


class _Library(NamedTuple):
    """All tables by name, and the names of the defaults by method and model."""

    tables: Mapping[str, AcceptanceTable]
    defaults: Mapping[tuple[str, str], str]


def table_names() -> list[str]:
    """Return the names of the shipped tables."""
    return sorted(_library().tables)


def load_table(name: str) -> AcceptanceTable:
    """Return the shipped table of that name. Raises ValueError with similar names if there is none."""
    tables = _library().tables
    if name not in tables:
        raise ValueError(f"{name!r} is no acceptance table{did_you_mean(name, tables)}")
    return tables[name]


def default_table(method: str, model: str) -> AcceptanceTable | None:
    """Return the default table of a method with a model: the model's own, else the method's, else None.

    `model` is a model in a scenario: a shipped name, a Hugging Face id or the path of a config.
    """
    tables, defaults = _library()
    name = defaults.get((method, _shipped_name(model))) or defaults.get((method, _ANY))
    return tables[name] if name else None


def _shipped_name(model: str) -> str:
    try:
        return load_model(model).name
    except InputError:
        return model


@cache
def _library() -> _Library:
    tables: dict[str, AcceptanceTable] = {}
    defaults: dict[tuple[str, str], str] = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        fields = Fields(str(path), read_yaml(path))
        method = fields.text("method")
        section, chosen = fields.required_section("tables"), fields.required_section("defaults")
        fields.finish()
        tables.update({name: _table(section.required_section(name), name, method) for name in section.names()})
        defaults.update({(method, model): _known(chosen, model, tables) for model in chosen.names()})
    return _Library(tables, defaults)


def _table(fields: Fields, name: str, method: str) -> AcceptanceTable:
    table = AcceptanceTable(
        name=name,
        method=method,
        model=fields.text("model"),
        dataset=fields.text("dataset"),
        cumulative=_rates(fields),
        source=fields.text("source"),
        derivation=fields.text("derivation", default=""),
        match_rate=_match_rate(fields),
    )
    fields.finish()
    return table


def _match_rate(fields: Fields) -> float | None:
    if "match_rate" not in fields.names():
        return 1.0
    _, found = fields.value("match_rate")
    if found == "unknown":
        return None
    if not isinstance(found, float) or not 0 < found <= 1:
        raise fields.error("match_rate", "expected `unknown`, or a share above 0")
    return found


def _rates(fields: Fields) -> tuple[float, ...]:
    _, found = fields.value("cumulative")
    if not isinstance(found, list) or not found or not all(isinstance(rate, float) for rate in found):
        raise fields.error("cumulative", "expected a list of numbers such as 0.7")
    if any(later > earlier for earlier, later in itertools.pairwise([1.0, *found, 0.0])):
        raise fields.error("cumulative", "must be between 0 and 1, and must not rise")
    return tuple(found)


def _known(chosen: Fields, model: str, tables: Mapping[str, AcceptanceTable]) -> str:
    name = chosen.text(model)
    if name not in tables:
        raise chosen.error(model, f"{name!r} is none of the tables")
    return name
