"""The serving side as the source meets it: a door that refuses what cannot be served, a router, and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Clock
from simulator.engine.log import RequestLog
from simulator.engine.replica import Replica
from simulator.results.record import Refusal, Status
from simulator.routing import Router
from simulator.scheduling import Limits, Sequence
from simulator.workload.requests import RequestTable


def refusals(table: RequestTable, max_model_len: int, pool_tokens: int, limits: Limits) -> NDArray[np.int8]:
    """For each request, the `Refusal` with which the service turns it away on arrival.

    A prompt and what the client may get in return must fit the context, as vLLM's front end checks. The KV of all but
    the last token must fit the pool: an engine that admits a larger one waits, or preempts it, for ever. The
    scheduler's limits may cut the output at the context limit instead, and let the latter wait; or set one for prompts.
    """
    most = table.prompt_tokens.astype(np.int64) + table.max_tokens
    reasons = np.zeros(len(table), np.int8)
    if limits.context_overflow == "cut":
        most = np.minimum(most, np.maximum(max_model_len, table.prompt_tokens + 1))
    if limits.pool_overflow == "refuse":
        reasons[most - 1 > pool_tokens] = Refusal.KV_POOL
    reasons[most > max_model_len] = Refusal.CONTEXT_LIMIT
    if limits.max_prompt_tokens is not None:
        reasons[table.prompt_tokens > limits.max_prompt_tokens] = Refusal.CONTEXT_LIMIT
    return reasons


class Fleet:
    """Routes requests to replicas and keeps count of what is unfinished where. It is what a router may look at."""

    def __init__(
        self,
        clock: Clock,
        table: RequestTable,
        log: RequestLog,
        router: Router,
        refused: NDArray[np.int8],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.replicas: list[Replica] = []
        self.requests: list[int] = []
        self.ended: Callable[[int], None] = lambda index: None  # the source's ear; set once it exists
        self.sequence: Callable[[int], Sequence] = self._sequence  # what a request is to the replicas
        self._clock, self._log, self._router = clock, log, router
        self._prompts = np.ascontiguousarray(table.prompt_tokens, np.int64).data
        self._max_tokens = np.ascontiguousarray(table.max_tokens, np.int64).data
        self._refused = refused.tobytes()
        self._progress = progress
        self._done = 0

    def add(self, replica: Replica) -> None:
        """Open a replica to traffic."""
        self.replicas.append(replica)
        self.requests.append(0)

    def known_tokens(self, replica: int) -> int:
        """See `routing.Fleet`."""
        return self.replicas[replica].known_tokens

    def send(self, index: int) -> bool:
        """Take request `index` in; False if it is refused."""
        log = self._log
        log.arrival_ns[index] = self._clock._now
        if self._refused[index]:
            log.refuse(index, Refusal(self._refused[index]))
            self._count()
            return False
        seq = self.sequence(index)
        chosen = self._router.choose(seq, self)
        self.requests[chosen] += 1
        log.replica[index] = chosen
        log.status[index] = Status.IN_FLIGHT
        self.replicas[chosen].submit(seq)
        return True

    def _sequence(self, index: int) -> Sequence:
        return Sequence(index, self._prompts[index], self._max_tokens[index])

    def finished(self, sequences: Iterable[Sequence]) -> None:
        """These got their last tokens from one step. All are counted out before any client hears of it."""
        log = self._log
        for seq in sequences:
            log.status[seq.index] = Status.COMPLETED
            self.requests[log.replica[seq.index]] -= 1
            self._count()
        for seq in sequences:
            self.ended(seq.index)

    def _count(self) -> None:
        self._done += 1
        if self._progress is not None and not self._done % 64:
            self._progress(self._clock._now, self._done)
