"""Construction of a law of runs for the requests of a workload, from a scenario's `acceptance`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.common.randomness import stream
from simulator.errors import InputError
from simulator.scenario.acceptance import (
    Acceptance,
    ByClassAcceptance,
    IidAcceptance,
    MixtureAcceptance,
    ReplayAcceptance,
    TableAcceptance,
)
from simulator.scenario.speculation import Ngram, Proposer
from simulator.speculation.expectation import cumulative_rates, iid_cumulative
from simulator.speculation.recorded import read_counts
from simulator.speculation.runs import AcceptanceLaw, DrawnRuns, Rates, ReplayedRuns
from simulator.speculation.tables import AcceptanceTable, default_table, load_table, table_names


class RequestClasses(NamedTuple):
    """The classes of requests: their `names`, and the `ids` (n,) of all requests, which index them."""

    names: Sequence[str]
    ids: NDArray[np.integer]


class Origin(NamedTuple):
    """Place of a proposer in a scenario: the `path` of its keys, and a function that finds a file by its name."""

    path: str
    find: Callable[[str], Path]


def build_acceptance(
    proposer: Proposer, model: str, seed: int, classes: RequestClasses, origin: Origin
) -> AcceptanceLaw:
    """Build the law of `proposer` for requests of these classes; `model` is the target, which selects default tables.

    Raises:
        InputError: a table is unknown or too short, the workload does not have a class, or a file is not valid.
    """
    acceptance, path = proposer.acceptance, origin.path
    if isinstance(acceptance, ReplayAcceptance):
        where = f"{path}.acceptance.file"
        try:
            file = origin.find(acceptance.file)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return ReplayedRuns(read_counts(file, where), proposer.depth)
    laws = _Laws(proposer, model, seed, len(classes.ids))
    if isinstance(acceptance, ByClassAcceptance):
        _by_class(laws, acceptance, classes, f"{path}.acceptance")
    else:
        laws.add(acceptance, np.ones(len(classes.ids), bool), f"{path}.acceptance")
    return DrawnRuns(seed, laws.rates, laws.correlation, laws.which, laws.match_rates)


def _by_class(laws: _Laws, acceptance: ByClassAcceptance, classes: RequestClasses, path: str) -> None:
    class_names, class_id = classes
    unknown = [name for name in acceptance.classes if name not in class_names]
    if unknown:
        raise InputError(f"{path}.classes: the workload has no class {unknown[0]!r}; it has {', '.join(class_names)}")
    others = [number for number, name in enumerate(class_names) if name not in acceptance.classes]
    if others:
        laws.add(acceptance.others, np.isin(class_id, others), f"{path}.others")
    for name, law in acceptance.classes.items():
        laws.add(law, class_id == class_names.index(name), f"{path}.classes.{name}")


class _Laws:
    """Collector of the different laws of requests, in the form that `DrawnRuns` takes."""

    def __init__(self, proposer: Proposer, model: str, seed: int, count: int) -> None:
        self.rates: list[Rates] = []
        self.correlation: list[float] = []
        self.match_rates: list[float] = []
        self.which = np.zeros(count, np.int64)
        self._proposer, self._model = proposer, model
        self._draws = stream(seed, "acceptance mixture").random(count)

    def add(self, law: Acceptance, chosen: NDArray[np.bool_], path: str) -> None:
        """Give this law to the requests where `chosen` (n,) is True; `path` is that of its keys in the scenario."""
        if isinstance(law, MixtureAcceptance):
            shares = np.cumsum([part.weight for part in law.parts])
            part_of = np.searchsorted(shares / shares[-1], self._draws, "right")
            for number, part in enumerate(law.parts):
                self.add(part.acceptance, chosen & (part_of == number), f"{path}.parts[{number}].acceptance")
            return
        assert isinstance(law, IidAcceptance | TableAcceptance)
        rates, match_rate = _rates(law, self._proposer, self._model, path)
        self.which[chosen] = len(self.rates)
        self.rates.append(rates)
        self.correlation.append(law.correlation)
        self.match_rates.append(match_rate)


def tables_of(proposer: Proposer, model: str, path: str) -> list[AcceptanceTable]:
    """Return the shipped tables by which drafts of `proposer` are accepted. Raises InputError for an unknown one."""
    found = [
        _table(law, proposer, model, path) for law in _laws(proposer.acceptance) if isinstance(law, TableAcceptance)
    ]
    return [table for table in found if table is not None]


def _laws(acceptance: Acceptance) -> Iterator[Acceptance]:
    """Yield the laws of which an acceptance consists."""
    if isinstance(acceptance, MixtureAcceptance):
        for part in acceptance.parts:
            yield from _laws(part.acceptance)
    elif isinstance(acceptance, ByClassAcceptance):
        for law in (*acceptance.classes.values(), acceptance.others):
            yield from _laws(law)
    else:
        yield acceptance


def _rates(law: IidAcceptance | TableAcceptance, proposer: Proposer, model: str, path: str) -> tuple[Rates, float]:
    """Return the cumulative rates of the first `proposer.depth` drafts, and the share of steps that have drafts."""
    depth = proposer.depth
    match_rate = proposer.match_rate if isinstance(proposer, Ngram) else 1.0
    if isinstance(law, IidAcceptance):
        return tuple(iid_cumulative(law.alpha, depth)), 1.0 if match_rate is None else match_rate
    table = _table(law, proposer, model, path)
    known = law.cumulative or tuple(cumulative_rates(law.conditional)) if table is None else table.cumulative
    if len(known) < depth:
        name = f"table {table.name}" if table else "cumulative" if law.cumulative else "conditional"
        raise InputError(
            f"{path}: {name} has rates of {len(known)} drafts in a row, but up to {depth} are proposed; propose fewer, "
            f"or give more rates{_longer(proposer, depth)}"
        )
    if match_rate is None:
        match_rate = 1.0 if table is None or table.match_rate is None else table.match_rate
    return known[:depth], match_rate


def _longer(proposer: Proposer, depth: int) -> str:
    """Return the end of an error that lists the shipped tables with enough rates."""
    tables = [table for table in map(load_table, table_names()) if table.method == method_of(proposer)]
    names = [table.name for table in tables if len(table.cumulative) >= depth]
    return f" (or take a longer table: {', '.join(names)})" if names else ""


def method_of(proposer: Proposer) -> str:
    """Return the name of the proposer's method in a scenario."""
    method: str = proposer.TAG  # type: ignore[attr-defined]
    return method


def _table(law: TableAcceptance, proposer: Proposer, model: str, path: str) -> AcceptanceTable | None:
    """Return the shipped table of a law; None if it has rates of its own."""
    if law.cumulative or law.conditional:
        return None
    method = method_of(proposer)
    if law.table is not None:
        try:
            return load_table(law.table)
        except ValueError as error:
            raise InputError(f"{path}.table: {error}") from None
    found = default_table(method, model)
    if found is None:
        raise InputError(
            f"{path}: no shipped table is of {method} with {model}; name one (`servesim list acceptance`), or give the "
            "rates that were measured as cumulative, conditional or law: iid"
        )
    return found
