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
_REQUESTS = 64
_EVENTS = 64
#: Number of blocks of draws in the cache: those of 16,384 requests with 64 steps each.
_KEPT = 256
#: Run of an event in which the proposer finds nothing to propose.
NOTHING = -1

#: Normal scores of requests are drawn from a grid of `_SCORES` values from -`_FARTHEST` to `_FARTHEST`.
_SCORES, _FARTHEST = 4001, 6.0

Rates = tuple[float, ...]


class AcceptanceLaw(Protocol):
    """A law of the acceptance of drafts."""

    #: Whether the proposer may find nothing to propose.
    gaps: bool

    def runs(self, index: int) -> Iterator[int]:
        """Yield the runs of request `index`, one an event, without end; `NOTHING` where nothing is proposed."""

    def some(self, index: int, first: int, count: int) -> NDArray[np.int16]:
        """Return the runs of `count` events of request `index`, from event `first` on; shape (count,)."""


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
        depth = max(len(each) for each in rates)
        padded = np.zeros((len(rates), depth))
        for row, each in zip(padded, rates, strict=True):
            row[: len(each)] = each
        self._rates, self._which = padded, np.asarray(which)
        self._correlation, self._match_rates = np.asarray(correlation), np.asarray(match_rates)
        self.gaps = bool((self._match_rates < 1).any())
        key = stream(seed, "acceptance").integers(0, 2**63, 2, dtype=np.uint64)
        self._bits = np.random.Philox(key=key)
        self._source, self._state = np.random.Generator(self._bits), self._bits.state
        self._own: NDArray[np.float64] | None = None
        if self._correlation.any():
            self._own = self._scores(stream(seed, "acceptance of a request").random(len(which)))
        self._block = lru_cache(_KEPT)(self._drawn)

    def runs(self, index: int) -> Iterator[int]:
        """Yield the runs of request `index`, one an event, without end; `NOTHING` where nothing is proposed."""
        requests, row = divmod(index, _REQUESTS)
        events = 0
        while True:
            yield from self._block(requests, events)[row].tolist()
            events += 1

    def some(self, index: int, first: int, count: int) -> NDArray[np.int16]:
        """Return the runs of `count` events of request `index`, from event `first` on; shape (count,)."""
        requests, row = divmod(index, _REQUESTS)
        block, at = divmod(first, _EVENTS)
        if at + count <= _EVENTS:
            return self._block(requests, block)[row, at : at + count]
        blocks = range(block, (first + count - 1) // _EVENTS + 1)
        return np.concatenate([self._block(requests, each)[row] for each in blocks])[at : at + count]

    def _drawn(self, requests: int, events: int) -> NDArray[np.int16]:
        """Return the runs of a block of requests and events, (requests, events); equal for equal arguments."""
        first = requests * _REQUESTS
        which = self._which[first : first + _REQUESTS]
        source = self._source_of(requests, events)
        uniform = source.random((_REQUESTS, _EVENTS))[: len(which)]
        unmatched = None
        if self.gaps:
            unmatched = source.random((_REQUESTS, _EVENTS))[: len(which)] >= self._match_rates[which][:, None]
        if self._own is not None:
            uniform = self._correlated(uniform, self._own[first : first + len(which)], self._correlation[which])
        rates = self._rates[which] if len(self._rates) > 1 else self._rates
        counts = np.zeros(uniform.shape, np.uint8)
        for depth in range(rates.shape[1]):
            counts += (uniform < rates[:, depth, None]).view(np.uint8)
        runs = counts.astype(np.int16)
        if unmatched is not None:
            runs[unmatched] = NOTHING
        return runs

    def _source_of(self, requests: int, events: int) -> np.random.Generator:
        """Return the source of a block's draws: the generator with the block as its counter."""
        self._state["state"]["counter"] = np.array([0, 0, requests, events], np.uint64)
        self._bits.state = self._state
        return self._source

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

    def some(self, index: int, first: int, count: int) -> NDArray[np.int16]:
        """Return the runs of `count` events of request `index`, from event `first` on; shape (count,)."""
        counts = np.array(self._counts[index % len(self._counts)], np.int16)
        return counts[np.arange(first, first + count) % len(counts)]
