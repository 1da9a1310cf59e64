"""Proposers of measured runs, and the acceptance of their drafts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from cost_models import load_model
from simulator.scenario.acceptance import TableAcceptance
from simulator.scenario.speculation import DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, Speculation
from simulator.validation.cells import NotSimulatedError
from simulator.validation.speculation.acceptance import geometric, has_source, shipped
from simulator.validation.speculation.lines import Line
from simulator.validation.speculation.serving import with_format

#: Methods, by patterns of their names; the first match counts.
_METHODS: tuple[tuple[str, type[Eagle3 | Eagle | Ngram | Mtp | Medusa]], ...] = (
    (r"eagle-?3", Eagle3),
    (r"eagle", Eagle),
    (r"n-?gram|prompt.lookup", Ngram),
    (r"mtp|multi-token", Mtp),
    (r"medusa", Medusa),
)
_TREE = re.compile(r"top-?k ?\d|tree")
#: Rows to which terms of proposing in cost_models/hosts were fitted: a part of their provenance, k, and their metrics.
_FITTED = (
    ("#20780", (2, 7), ("tpot_mean_ms", "tpot_speed_up")),
    ("nvidia_h100_80gb_hbm3x1_suite_A_nvidia_vllm", (4,), ("output_tok_s", "output_speed_up")),
)


def method_of(line: Line) -> str:
    """Return the method's name in a scenario, if it is known; `none` without speculation; else as written."""
    kind = _kind(line.method)
    if line.plain:
        return "none"
    return kind.TAG if kind is not None else line.method or "unstated"


def proposer_of(
    line: Line, model: str, length: tuple[float, bool] | None, assumptions: list[str]
) -> tuple[Speculation, tuple[str, ...]]:
    """Return the proposer, and the metrics of the row that were used to set it.

    `length` is the acceptance length that was measured in the same run, and whether that was on the same server;
    `model` is the target. Raises NotSimulatedError, or CostModelError for an unknown draft model.
    """
    if _TREE.search(line.method.lower()):
        raise NotSimulatedError("acceptance of a tree of drafts is not stated, and differs from that of a chain")
    if line.drafts is None:
        raise NotSimulatedError(f"k {line.text('k')!r} is no number of drafts")
    kind = _kind(line.method)
    if line.alone or length is None:
        accepted = _shipped(line, DraftModel.TAG if kind is None else kind.TAG, model, assumptions)
    else:
        accepted = _own(line.drafts, *length, assumptions)
    given = accepted.given + _fitted(line)
    acceptance = TableAcceptance(cumulative=accepted.rates)
    if kind is None:
        drafter = with_format(line.method)
        return DraftModel(num_speculative_tokens=line.drafts, acceptance=acceptance, model=drafter), given
    proposer = kind(num_speculative_tokens=line.drafts, acceptance=acceptance)
    if not isinstance(proposer, Ngram):
        return proposer, given
    if accepted.match_rate is None:
        assumptions.append("n-gram: drafts in every step, since the share of steps with drafts is not known")
    return replace(proposer, match_rate=accepted.match_rate), given


class _Accepted(NamedTuple):
    """Cumulative rates by position in steps with drafts; the share of such steps, None if it is not known; and the
    metrics of the row that were used for them."""

    rates: tuple[float, ...]
    match_rate: float | None
    given: tuple[str, ...]


def _kind(method: str) -> type[Eagle3 | Eagle | Ngram | Mtp | Medusa] | None:
    return next((kind for pattern, kind in _METHODS if re.search(pattern, method.lower())), None)


def _fitted(line: Line) -> tuple[str, ...]:
    """Return the metrics of a row to which the host's terms were fitted."""
    provenance = line.text("provenance")
    found = (metrics for source, ks, metrics in _FITTED if source in provenance and line.drafts in ks)
    return next(found, ()) if line.metric.kind != "acceptance_length" else ()


def _own(drafts: int, length: float, same_server: bool, assumptions: list[str]) -> _Accepted:
    """Return the acceptance from a measured acceptance length."""
    where = "in the same run" if same_server else "with the same drafts on another server"
    assumptions.append(f"acceptance length: measured {where}, spread geometrically over the drafts")
    try:
        return _Accepted(geometric(length, drafts), None, ("acceptance_length",))
    except ValueError as error:
        raise NotSimulatedError(str(error)) from None


def _shipped(line: Line, method: str, model: str, assumptions: list[str]) -> _Accepted:
    """Return the acceptance from the shipped table for the row's drafts."""
    assert line.drafts is not None
    table = shipped(method, load_model(model).name, line.text("dataset"))
    if table is None:
        raise NotSimulatedError(f"no shipped table has the acceptance of {method} with {model}")
    if len(table.cumulative) < line.drafts:
        last = len(table.cumulative)
        raise NotSimulatedError(f"shipped table {table.name} ends at draft {last}, and no row has an acceptance length")
    same = line.metric.kind == "acceptance_length" and has_source(table, line.text("provenance"))
    assumptions.append(f"acceptance: shipped table {table.name}" + (", made from this very row" if same else ""))
    return _Accepted(table.cumulative[: line.drafts], table.match_rate, ("acceptance_length",) if same else ())
