"""How many drafts in a row each verification would accept: drawn by request and event, whatever the scheduler does.

A draw does not depend on how many drafts there are. It is a run: the number of drafts, up to the deepest the law knows,
that the target accepts one after the other; a step with fewer drafts accepts as many as it has. So designs that propose
different numbers, or verify at different times, meet the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from simulator.errors import InputError
from simulator.randomness import stream
from simulator.scenario.speculation import (
    Acceptance,
    ByClassAcceptance,
    IidAcceptance,
    MixtureAcceptance,
    Ngram,
    Proposer,
    ReplayAcceptance,
    TableAcceptance,
)
from simulator.speculation.expectation import cumulative_rates, iid_cumulative
from simulator.speculation.recorded import read_counts
from simulator.speculation.tables import AcceptanceTable, default_table, load_table, table_names

#: Draws are made for so many requests and so many events of each at once.
_REQUESTS = 64
_EVENTS = 64
#: Blocks of draws that are kept: those of 16,384 requests, as long as each takes 64 steps.
_KEPT = 256
#: What a run is where the proposer finds nothing to propose.
NOTHING = -1

#: Normal scores of requests are drawn from a grid of so many, between these bounds.
_SCORES, _FARTHEST = 4001, 6.0

Rates = tuple[float, ...]


class AcceptanceLaw(Protocol):
    """Tells what becomes of drafts."""

    #: Can there be nothing to propose?
    gaps: bool

    def runs(self, index: int) -> Iterator[int]:
        """The runs of request `index`, one an event, without end; `NOTHING` where nothing is proposed."""

    def some(self, index: int, first: int, count: int) -> NDArray[np.int64]:
        """(count,): those of its events from number `first` on."""


class DrawnRuns:
    """Runs drawn from cumulative rates.

    `rates` are the different tables of the requests, and `which` (n,) says by request which of them counts.
    `correlation` (tables,): the runs of a request in a table come from a normal score that is partly its own.
    `match_rates` (tables,): in how many of the steps there is anything to propose.
    """

    def __init__(
        self,
        seed: int,
        rates: Sequence[Rates],
        correlation: Sequence[float],
        which: NDArray[np.integer],
        match_rates: Sequence[float],
    ) -> None:
        depth = max(len(each) for each in rates)
        padded = np.zeros((len(rates), depth))
        for row, each in zip(padded, rates, strict=True):
            row[: len(each)] = each
        self._rates, self._which = padded, np.asarray(which)
        self._correlation, self._match_rates = np.asarray(correlation), np.asarray(match_rates)
        self.gaps = bool((self._match_rates < 1).any())
        self._key = stream(seed, "acceptance").integers(0, 2**63, 2, dtype=np.uint64)
        self._own: NDArray[np.float64] | None = None
        if self._correlation.any():
            self._own = self._scores(stream(seed, "acceptance of a request").random(len(which)))
        self._block = lru_cache(_KEPT)(self._drawn)

    def runs(self, index: int) -> Iterator[int]:
        """See `AcceptanceLaw`."""
        requests, row = divmod(index, _REQUESTS)
        events = 0
        while True:
            yield from self._block(requests, events)[row].tolist()
            events += 1

    def some(self, index: int, first: int, count: int) -> NDArray[np.int64]:
        """See `AcceptanceLaw`."""
        requests, row = divmod(index, _REQUESTS)
        block, at = divmod(first, _EVENTS)
        if at + count <= _EVENTS:
            return self._block(requests, block)[row, at : at + count]
        blocks = range(block, (first + count - 1) // _EVENTS + 1)
        return np.concatenate([self._block(requests, each)[row] for each in blocks])[at : at + count]

    def _drawn(self, requests: int, events: int) -> NDArray[np.int64]:
        """The runs of a block of requests and of events, (requests, events): always the same for the same numbers."""
        first = requests * _REQUESTS
        which = self._which[first : first + _REQUESTS]
        source = np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, requests, events]))
        uniform = source.random((_REQUESTS, _EVENTS))[: len(which)]
        unmatched = None
        if self.gaps:
            unmatched = source.random((_REQUESTS, _EVENTS))[: len(which)] >= self._match_rates[which][:, None]
        if self._own is not None:
            uniform = self._correlated(uniform, self._own[first : first + len(which)], self._correlation[which])
        runs = np.zeros(uniform.shape, np.int64)
        for depth in range(self._rates.shape[1]):
            runs += uniform < self._rates[which, depth][:, None]
        if unmatched is not None:
            runs[unmatched] = NOTHING
        return runs

    def _scores(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """The requests' own normal scores, drawn from where `uniform` (n,) lies.

        What is measured is a law of steps, and a request that accepts well takes fewer of them for the same text. So
        that the steps of all have the law of their table, requests are drawn with a density in proportion to their
        tokens a step.
        """
        scores = np.linspace(-_FARTHEST, _FARTHEST, _SCORES)
        own = np.zeros(len(uniform))
        for table, (rates, correlation) in enumerate(zip(self._rates, self._correlation, strict=True)):
            mine = self._which == table
            given = (ndtri(rates)[:, None] - np.sqrt(correlation) * scores) / np.sqrt(1 - correlation)
            density = np.exp(-(scores**2) / 2) * (1 + ndtr(given).sum(axis=0))
            upto = np.cumsum(density)
            own[mine] = np.interp(uniform[mine], upto / upto[-1], scores)
        return own

    @staticmethod
    def _correlated(
        uniform: NDArray[np.float64], own: NDArray[np.float64], correlation: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Uniform draws whose normal scores have that correlation within a request (a Gaussian copula)."""
        common, rest = np.sqrt(correlation), np.sqrt(1 - correlation)
        scores = common[:, None] * own[:, None] + rest[:, None] * ndtri(uniform)
        drawn: NDArray[np.float64] = ndtr(scores)
        return drawn


class ReplayedRuns:
    """Runs as they were recorded, up to `depth`; see `ReplayAcceptance`."""

    gaps = False

    def __init__(self, counts: Sequence[Sequence[int]], depth: int) -> None:
        self._counts = [[min(run, depth) for run in each] for each in counts]

    def runs(self, index: int) -> Iterator[int]:
        """See `AcceptanceLaw`."""
        counts = self._counts[index % len(self._counts)]
        while True:
            yield from counts

    def some(self, index: int, first: int, count: int) -> NDArray[np.int64]:
        """See `AcceptanceLaw`."""
        counts = np.array(self._counts[index % len(self._counts)], np.int64)
        return counts[np.arange(first, first + count) % len(counts)]


def build_acceptance(
    proposer: Proposer,
    model: str,
    seed: int,
    class_names: Sequence[str],
    class_id: NDArray[np.integer],
    find: Callable[[str], Path],
    path: str,
) -> AcceptanceLaw:
    """The law of `proposer` for requests of the classes `class_id` (n,), which index `class_names`.

    `model` is the target, for tables that go by it; `find` looks a file up by its name; `path` is where the proposer
    stands in the scenario.

    Raises:
        InputError: a table that is not there or too short, a class that the workload does not have, a bad file.
    """
    acceptance = proposer.acceptance
    if isinstance(acceptance, ReplayAcceptance):
        where = f"{path}.acceptance.file"
        try:
            file = find(acceptance.file)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return ReplayedRuns(read_counts(file, where), proposer.depth)
    laws = _Laws(proposer, model, seed, len(class_id))
    if isinstance(acceptance, ByClassAcceptance):
        _by_class(laws, acceptance, class_names, class_id, f"{path}.acceptance")
    else:
        laws.add(acceptance, np.ones(len(class_id), bool), f"{path}.acceptance")
    return DrawnRuns(seed, laws.rates, laws.correlation, laws.which, laws.match_rates)


def _by_class(
    laws: _Laws, acceptance: ByClassAcceptance, class_names: Sequence[str], class_id: NDArray[np.integer], path: str
) -> None:
    unknown = [name for name in acceptance.classes if name not in class_names]
    if unknown:
        raise InputError(f"{path}.classes: the workload has no class {unknown[0]!r}; it has {', '.join(class_names)}")
    others = [number for number, name in enumerate(class_names) if name not in acceptance.classes]
    if others:
        laws.add(acceptance.others, np.isin(class_id, others), f"{path}.others")
    for name, law in acceptance.classes.items():
        laws.add(law, class_id == class_names.index(name), f"{path}.classes.{name}")


class _Laws:
    """The different laws of requests, put together: those of `DrawnRuns`."""

    def __init__(self, proposer: Proposer, model: str, seed: int, count: int) -> None:
        self.rates: list[Rates] = []
        self.correlation: list[float] = []
        self.match_rates: list[float] = []
        self.which = np.zeros(count, np.int64)
        self._proposer, self._model = proposer, model
        self._draws = stream(seed, "acceptance mixture").random(count)

    def add(self, law: Acceptance, chosen: NDArray[np.bool_], path: str) -> None:
        """Let the requests where `chosen` (n,) is True have this law; `path` is where it stands in the scenario."""
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
    """The shipped tables by which drafts of `proposer` are accepted. Raises InputError for one that is not there."""
    found = [
        _table(law, proposer, model, path) for law in _laws(proposer.acceptance) if isinstance(law, TableAcceptance)
    ]
    return [table for table in found if table is not None]


def _laws(acceptance: Acceptance) -> Iterator[Acceptance]:
    """The laws that an acceptance is made of."""
    if isinstance(acceptance, MixtureAcceptance):
        for part in acceptance.parts:
            yield from _laws(part.acceptance)
    elif isinstance(acceptance, ByClassAcceptance):
        for law in (*acceptance.classes.values(), acceptance.others):
            yield from _laws(law)
    else:
        yield acceptance


def _rates(law: IidAcceptance | TableAcceptance, proposer: Proposer, model: str, path: str) -> tuple[Rates, float]:
    """The cumulative rates of the first `proposer.depth` drafts, and how often there are any."""
    depth = proposer.depth
    match_rate = proposer.match_rate if isinstance(proposer, Ngram) else 1.0
    if isinstance(law, IidAcceptance):
        return tuple(iid_cumulative(law.alpha, depth)), 1.0 if match_rate is None else match_rate
    table = _table(law, proposer, model, path)
    known = law.cumulative or tuple(cumulative_rates(law.conditional)) if table is None else table.cumulative
    if len(known) < depth:
        name = f"table {table.name}" if table else "cumulative" if law.cumulative else "conditional"
        raise InputError(
            f"{path}: {name} has rates of {len(known)} drafts in a row, and up to {depth} are proposed; propose fewer, "
            f"or give as many rates{_longer(proposer, depth)}"
        )
    if match_rate is None:
        match_rate = 1.0 if table is None or table.match_rate is None else table.match_rate
    return known[:depth], match_rate


def _longer(proposer: Proposer, depth: int) -> str:
    """The shipped tables that have enough rates, for an error."""
    tables = [table for table in map(load_table, table_names()) if table.method == method_of(proposer)]
    names = [table.name for table in tables if len(table.cumulative) >= depth]
    return f" (or take a longer table: {', '.join(names)})" if names else ""


def method_of(proposer: Proposer) -> str:
    """Its name in a scenario."""
    method: str = proposer.TAG  # type: ignore[attr-defined]
    return method


def _table(law: TableAcceptance, proposer: Proposer, model: str, path: str) -> AcceptanceTable | None:
    """The shipped table of a law; None if it has rates of its own."""
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
