"""Experts that data-parallel ranks share: the exchange of tokens between the ranks, and the experts' own time."""

from __future__ import annotations

import numpy as np

from cost_models.roofline.operators import Deployed, exchange_ns, shared_experts_ns
from cost_models.roofline.whole_ns import rounded_up


class SharedExperts:
    """Times of a deployment's shared experts in whole ns, tabulated up to `limit` tokens of a rank, and `everywhere` of
    all ranks; 0 for a single rank, which shares nothing."""

    __slots__ = ("_deployed", "_exchange_table", "_experts_table", "ranks")

    def __init__(self, deployed: Deployed, limit: int, everywhere: int) -> None:
        self._deployed, self.ranks = deployed, deployed.data_parallel
        self._exchange_table: list[int] = []
        self._experts_table: list[int] = []
        if self.ranks > 1:
            counts = np.arange(max(limit, everywhere) + 1, dtype=float)
            self._exchange_table = rounded_up(exchange_ns(deployed, counts[: limit + 1])).tolist()
            self._experts_table = rounded_up(shared_experts_ns(deployed, counts[: everywhere + 1])).tolist()

    def equal_ns(self) -> list[int]:
        """Return the time for each number of tokens in the table, the same of every rank."""
        counts = np.arange(len(self._exchange_table), dtype=float)
        experts = rounded_up(shared_experts_ns(self._deployed, self.ranks * counts))  # in one call for all
        equal: list[int] = (np.array(self._exchange_table) + experts).tolist()
        return equal

    def ns(self, tokens: int, everywhere: int) -> int:
        """Return the time of common work, with up to `tokens` of a rank and `everywhere` of all."""
        return 0 if self.ranks == 1 else self.exchange_ns(tokens) + self.experts_ns(everywhere)

    def exchange_ns(self, tokens: int) -> int:
        """Return the time of the exchange if the rank with the most tokens has `tokens`."""
        if tokens < len(self._exchange_table):
            return self._exchange_table[tokens]
        return int(rounded_up(exchange_ns(self._deployed, np.array([tokens], dtype=float)))[0])

    def experts_ns(self, everywhere: int) -> int:
        """Return the time of the experts with `everywhere` tokens of all ranks."""
        if everywhere < len(self._experts_table):
            return self._experts_table[everywhere]
        return int(rounded_up(shared_experts_ns(self._deployed, np.array([everywhere], dtype=float)))[0])
