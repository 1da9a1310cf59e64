"""Numbers of drafts in a row that verifications accept: drawn by request and event, independent of the scheduler.

A draw does not depend on the number of drafts. It is a run: the number of drafts, up to the depth of the law, that the
target would accept one after the other. A step with fewer drafts accepts at most those. So designs that propose
different numbers of drafts, or verify at different times, generate the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.common.randomness import stream

#: Draws are made in blocks of this many requests and events of each.
TOGETHER = 64
_EVENTS = 64
#: Up to so many rows of a block are drawn one by one, in less time than the whole block takes.
_FEW = 12
#: Number of blocks of draws in the cache: those of 16,384 requests with 64 steps each.
_KEPT = 256
#: Run of an event in which the proposer finds nothing to propose.
NOTHING = -1

#: Normal scores of requests are drawn from a grid of `_SCORES` values from -`_FARTHEST` to `_FARTHEST`.
_SCORES, _FARTHEST = 4001, 6.0

Rates = tuple[float, ...]
Ints = NDArray[np.integer]


class AcceptanceLaw(Protocol):
    """A law of the acceptance of drafts."""

    #: Whether the proposer may find nothing to propose.
    gaps: bool

    def runs(self, index: int) -> Iterator[int]:
        """Yield the runs of request `index`, one an event, without end; `NOTHING` where nothing is proposed."""

    def until(self, requests: Sequence[int], first: int, tokens: Ints) -> tuple[NDArray[np.int16], Ints]:
        """Return the runs of some requests, which follow each other, from event `first` on until they bring `tokens`
        (n,), one request after the other, and the number of events of each.

        An event brings a token, and one for each accepted draft. Requests with the same index // `TOGETHER` may be
        asked for at once.
        """


class DrawnRuns:
    """Runs drawn from cumulative rates.

    `rates` are the different tables of the requests, and `which` (n,) is the number of each request's table.
    `correlation` (tables,) is that of the normal scores from which the runs of a request in a table are drawn.
    `match_rates` (tables,) are the shares of steps in which the proposer finds drafts.
    """

    def __init__(
        self,
        seed: int,
        rates: Sequence[Rates],
        correlation: Sequence[float],
        which: NDArray[np.integer],
        match_rates: Sequence[float],
    ) -> None:
        self._arguments = seed, rates, correlation, which, match_rates
        depth = max(len(each) for each in rates)
        padded = np.zeros((len(rates), depth))
        for row, each in zip(padded, rates, strict=True):
            row[: len(each)] = each
        self._rates, self._which = padded, np.asarray(which)
        self._correlation, self._match_rates = np.asarray(correlation), np.asarray(match_rates)
        self.gaps = bool((self._match_rates < 1).any())
        key = stream(seed, "acceptance").integers(0, 2**63, 2, dtype=np.uint64)
        self._bits = np.random.Philox(key=key)
        self._generator, self._state = np.random.Generator(self._bits), self._bits.state
        self._counter = self._state["state"]["counter"]
        self._own: NDArray[np.float64] | None = None
        if self._correlation.any():
            self._own = self._scores(stream(seed, "acceptance of a request").random(len(which)))
        self._block = lru_cache(_KEPT)(self._whole)

    def __reduce__(self) -> tuple[type[DrawnRuns], tuple[object, ...]]:
        return DrawnRuns, self._arguments  # for worker processes, without the cache

    def runs(self, index: int) -> Iterator[int]:
        """Yield the runs of request `index`, one an event, without end; `NOTHING` where nothing is proposed."""
        requests, row = divmod(index, TOGETHER)
        events = 0
        while True:
            yield from self._block(requests, events)[row].tolist()
            events += 1

    def until(self, requests: Sequence[int], first: int, tokens: Ints) -> tuple[NDArray[np.int16], Ints]:
        """Return the runs from event `first` on that bring `tokens`, and their numbers; see `AcceptanceLaw.until`."""
        block, row = divmod(requests[0], TOGETHER)
        events, skipped = divmod(first, _EVENTS)
        missing, active = np.array(tokens), np.flatnonzero(tokens > 0)
        runs: list[NDArray[np.int16]] = [np.zeros((len(missing), 0), np.int16)]
        needed = [np.zeros((len(missing), 0), bool)]
        while len(active):
            drawn = self._drawn(block, events, active + row)[:, skipped:]
            gains = np.maximum(drawn, 0) + 1
            upto = gains.cumsum(axis=1, dtype=np.int64)
            runs.append(np.zeros((len(missing), drawn.shape[1]), np.int16))
            needed.append(np.zeros(runs[-1].shape, bool))
            runs[-1][active], needed[-1][active] = drawn, upto - gains < missing[active, None]
            missing[active] -= upto[:, -1]
            active = active[missing[active] > 0]
            events, skipped = events + 1, 0
        chosen = np.concatenate(needed, axis=1)
        return np.concatenate(runs, axis=1)[chosen], chosen.sum(axis=1)

    def _whole(self, block: int, events: int) -> NDArray[np.int16]:
        """Return the runs of a block of requests and events."""
        return self._drawn(block, events, np.arange(min(TOGETHER, len(self._which) - block * TOGETHER)))

    def _drawn(self, block: int, events: int, rows: Ints) -> NDArray[np.int16]:
        """Return the runs of some rows of a block of requests and events, (rows, events); equal for equal arguments."""
        requests = block * TOGETHER + rows
        which = self._which[requests]
        uniform, unmatched = self._uniform((block, events), rows, 0), None
        if self.gaps:
            unmatched = self._uniform((block, events), rows, 1) >= self._match_rates[which][:, None]
        if self._own is not None:
            uniform = self._correlated(uniform, self._own[requests], self._correlation[which])
        rates = self._rates[which] if len(self._rates) > 1 else self._rates
        counts = np.zeros(uniform.shape, np.uint8)
        for depth in range(rates.shape[1]):
            counts += (uniform < rates[:, depth, None]).view(np.uint8)
        runs = counts.astype(np.int16)
        if unmatched is not None:
            runs[unmatched] = NOTHING
        return runs

    def _uniform(self, block: tuple[int, int], rows: Ints, number: int) -> NDArray[np.float64]:
        """Return some rows of one of the arrays of uniform draws of a block, (rows, events).

        The generator counts its draws, four at a time, so that few rows are drawn without the others.
        """
        before = number * TOGETHER * _EVENTS // 4
        if len(rows) > _FEW:
            drawn: NDArray[np.float64] = self._source(block, before).random((TOGETHER, _EVENTS))[rows]
            return drawn
        few = np.empty((len(rows), _EVENTS))
        for at, row in enumerate(rows.tolist()):
            self._source(block, before + row * _EVENTS // 4).random(out=few[at])
        return few

    def _source(self, block: tuple[int, int], at: int) -> np.random.Generator:
        """Return the generator, set to count `at` of a block."""
        self._counter[0], self._counter[2], self._counter[3] = at, *block
        self._bits.state = self._state
        return self._generator

    def _scores(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the requests' own normal scores, from uniform draws (n,).

        Rates are measured over steps, and a request with a high acceptance takes fewer steps for the same text. So
        requests are drawn with a density in proportion to their tokens a step: then the steps of all requests have the
        rates of their table.
        """
        from scipy.special import ndtr, ndtri  # imported here, since it is slow and runs without drafts do not need it

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
        """Return uniform draws whose normal scores have that correlation within a request (a Gaussian copula)."""
        from scipy.special import ndtr, ndtri

        common, rest = np.sqrt(correlation), np.sqrt(1 - correlation)
        scores = common[:, None] * own[:, None] + rest[:, None] * ndtri(uniform)
        drawn: NDArray[np.float64] = ndtr(scores)
        return drawn


class ReplayedRuns:
    """Recorded runs, up to `depth`; see `ReplayAcceptance`."""

    gaps = False

    def __init__(self, counts: Sequence[Sequence[int]], depth: int) -> None:
        self._counts = [[min(run, depth) for run in each] for each in counts]

    def runs(self, index: int) -> Iterator[int]:
        """Yield the runs of request `index`, one an event, without end; `NOTHING` where nothing is proposed."""
        counts = self._counts[index % len(self._counts)]
        while True:
            yield from counts

    def until(self, requests: Sequence[int], first: int, tokens: Ints) -> tuple[NDArray[np.int16], Ints]:
        """Return the runs from event `first` on that bring `tokens`, and their numbers; see `AcceptanceLaw.until`."""
        runs = [self._of(index, first, count) for index, count in zip(requests, tokens.tolist(), strict=True)]
        return np.concatenate(runs), np.array([len(each) for each in runs])

    def _of(self, index: int, first: int, tokens: int) -> NDArray[np.int16]:
        counts = np.array(self._counts[index % len(self._counts)], np.int16)
        runs = counts[np.arange(first, first + tokens) % len(counts)]
        return runs[np.cumsum(runs + 1) - runs - 1 < tokens]
