"""Admission: the check of requests on arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.service import Service
from simulator.results.columns import Refusal
from simulator.scenario.schema import Pool, Scenario
from simulator.scheduling import limits, speculation_of
from simulator.workload.requests import RequestTable


class PoolBounds(NamedTuple):
    """Limits of the requests that a pool can serve: `max_model_len` tokens of context, `pool_tokens` of KV a core.

    A prompt and its `max_tokens` must fit the context, as vLLM's front end checks; with `cuts` the output is truncated
    at the context limit instead. The KV of all tokens except the last must fit the memory, or with `to_completion` that
    of all tokens: else the engine never admits the request, or preempts it endlessly. With `waits` such a request is
    accepted nevertheless. With speculation a step allocates blocks for `beyond` more tokens, within the context limit.
    A pool that computes `prompts_only` computes one token of output.
    """

    max_model_len: int
    pool_tokens: int
    max_prompt_tokens: int | None = None
    prompts_only: bool = False
    cuts: bool = False
    waits: bool = False
    to_completion: bool = False
    beyond: int = 0

    @classmethod
    def of(cls, pool: Pool, service: Service) -> PoolBounds:
        """Return the bounds of the pool's settings and sizes."""
        asked, speculation = limits(pool.scheduler), speculation_of(pool)
        return cls(
            service.max_model_len,
            service.kv_blocks * pool.memory.block_size,
            asked.max_prompt_tokens,
            prompts_only=pool.role == "prefill",
            cuts=asked.context_overflow == "cut",
            waits=asked.pool_overflow != "refuse",
            to_completion=asked.to_completion,
            beyond=0 if speculation is None else speculation.beyond(asked.async_scheduling),
        )

    @property
    def sure_tokens(self) -> int:
        """Number of tokens, prompt and `max_tokens`, up to which every request can be served."""
        longest = (
            self.max_model_len if self.max_prompt_tokens is None else min(self.max_model_len, self.max_prompt_tokens)
        )
        return min(longest, self.pool_tokens - self.beyond)

    def refusal(self, prompt_tokens: int, max_tokens: int) -> Refusal:
        """Return the reason for which the pool cannot serve a request, or `Refusal.NONE`."""
        longest = self.max_model_len
        most = prompt_tokens + (1 if self.prompts_only else max_tokens)
        if self.cuts:
            most = min(most, max(longest, prompt_tokens + 1))
        if most > longest or (self.max_prompt_tokens is not None and prompt_tokens > self.max_prompt_tokens):
            return Refusal.CONTEXT_LIMIT
        held = most if self.to_completion else most - 1
        if self.beyond:
            held = max(held, min(held + self.beyond, longest))
        return Refusal.KV_POOL if held > self.pool_tokens and not self.waits else Refusal.NONE


#: A constant, since members of an enumeration are slow to look up, and this one is needed for every request.
_NONE = Refusal.NONE


class Admission:
    """Check of requests on arrival. Every pool must be able to serve a request, since routers may choose any."""

    def __init__(self, bounds: Iterable[PoolBounds], table: RequestTable) -> None:
        self._bounds = tuple(bounds)
        self._sure = min(each.sure_tokens for each in self._bounds)
        self._prompts = np.asarray(table.prompt_tokens, np.int64).data
        self._limits = np.asarray(table.max_tokens, np.int64).data

    def refusal(self, index: int) -> Refusal:
        """Return the reason for which request `index` is refused now, or `Refusal.NONE`."""
        if self._prompts[index] + self._limits[index] <= self._sure:
            return _NONE
        for bounds in self._bounds:
            reason = bounds.refusal(self._prompts[index], self._limits[index])
            if reason:
                return reason
        return Refusal.NONE


def build_admission(scenario: Scenario, table: RequestTable, services: Sequence[Service]) -> Admission:
    """Build the admission of the scenario's deployment; `services` are its pools, in their order."""
    pools = scenario.deployment.pools.values()
    return Admission([PoolBounds.of(pool, service) for pool, service in zip(pools, services, strict=True)], table)
