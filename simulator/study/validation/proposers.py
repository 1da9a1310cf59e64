"""Who drafted in a measured run, and how much of it was accepted."""

from __future__ import annotations

import re

from cost_models import load_model
from simulator.scenario.speculation import DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, Speculation, TableAcceptance
from simulator.study.validation.accepting import geometric, made_from, shipped
from simulator.study.validation.cells import NotSimulatedError
from simulator.study.validation.lines import Line

#: Methods, by a pattern of how they are called; the first that is found.
_METHODS: tuple[tuple[str, type[Eagle3 | Eagle | Ngram | Mtp | Medusa]], ...] = (
    (r"eagle-?3", Eagle3),
    (r"eagle", Eagle),
    (r"n-?gram|prompt.lookup", Ngram),
    (r"mtp|multi-token", Mtp),
    (r"medusa", Medusa),
)
_TREE = re.compile(r"top-?k ?\d|tree")
#: Rows that terms of proposing in cost_models/hosts were fitted to: a part of their provenance, k, and their metrics.
_FITTED = (
    ("#20780", (2, 7), ("tpot_mean_ms", "tpot_speed_up")),
    ("nvidia_h100_80gb_hbm3x1_suite_A_nvidia_vllm", (4,), ("output_tok_s", "output_speed_up")),
)


def method_of(line: Line) -> str:
    """The method's name in a scenario, where it is known; `none` without speculation; else as written."""
    kind = _kind(line.method)
    if line.plain:
        return "none"
    return kind.TAG if kind is not None else line.method or "unstated"


def proposer_of(
    line: Line, model: str, length: float | None, assumptions: list[str]
) -> tuple[Speculation, tuple[str, ...]]:
    """The proposer, and which metrics of the row are given by what it is known from.

    `length` is the acceptance length that was measured in the same run; `model` the target. Raises NotSimulatedError,
    or CostModelError for a draft model that is not known.
    """
    if _TREE.search(line.method.lower()):
        raise NotSimulatedError("acceptance of a tree of drafts is not stated, and not that of a chain")
    if line.drafts is None:
        raise NotSimulatedError(f"k {line.text('k')!r} is no number of drafts")
    kind = _kind(line.method)
    alone = line.metric == "acceptance_length" and line.number("ratio_as_reported") is None
    given: tuple[str, ...]
    if alone or length is None:
        rates, given = _shipped(line, DraftModel.TAG if kind is None else kind.TAG, model, assumptions)
    else:
        rates, given = _geometric(length, line.drafts), ("acceptance_length",)
        assumptions.append("acceptance length: measured in the same run, spread geometrically over the drafts")
    given += _fitted(line)
    acceptance = TableAcceptance(cumulative=rates)
    if kind is not None:
        return kind(num_speculative_tokens=line.drafts, acceptance=acceptance), given
    drafter = load_model(line.method).name
    return DraftModel(num_speculative_tokens=line.drafts, acceptance=acceptance, model=drafter), given


def _kind(method: str) -> type[Eagle3 | Eagle | Ngram | Mtp | Medusa] | None:
    return next((kind for pattern, kind in _METHODS if re.search(pattern, method.lower())), None)


def _fitted(line: Line) -> tuple[str, ...]:
    """The metrics of a row that the host's terms were fitted to."""
    provenance = line.text("provenance")
    found = (metrics for source, ks, metrics in _FITTED if source in provenance and line.drafts in ks)
    return next(found, ()) if line.metric != "acceptance_length" else ()


def _geometric(length: float, drafts: int) -> tuple[float, ...]:
    try:
        return geometric(length, drafts)
    except ValueError as error:
        raise NotSimulatedError(str(error)) from None


def _shipped(line: Line, method: str, model: str, assumptions: list[str]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Rates of a shipped table, and what it was made from."""
    assert line.drafts is not None
    table = shipped(method, model, line.text("dataset"))
    if table is None:
        raise NotSimulatedError(f"no shipped table says how many drafts of {method} on {model} are accepted")
    if len(table.cumulative) < line.drafts:
        raise NotSimulatedError(f"the shipped table {table.name} ends at draft {len(table.cumulative)}")
    same = line.metric == "acceptance_length" and made_from(table, line.text("provenance"))
    assumptions.append(f"acceptance: shipped table {table.name}" + (", made from this very row" if same else ""))
    return table.cumulative[: line.drafts], ("acceptance_length",) if same else ()
