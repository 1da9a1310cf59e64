"""The serving side as the source meets it: a door that refuses what cannot be served, a router, and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore
from simulator.engine.logs.request_log import RequestLog
from simulator.results.record import Refusal, Status
from simulator.routing import Router
from simulator.scheduling import Limits, SequenceState
from simulator.workload.requests import RequestTable

#: Makes what request i is to the replicas.
Maker = Callable[[int], SequenceState]


def refusals(
    table: RequestTable, max_model_len: int, pool_tokens: int, limits: Limits, beyond: int = 0
) -> NDArray[np.int8]:
    """For each request, the `Refusal` with which the service turns it away on arrival.

    A prompt and what the client may get in return must fit the context, as vLLM's front end checks. The KV of all but
    the last token must fit the pool, or that of all tokens where admission counts so (`Limits.to_completion`): an
    engine that admits a larger one waits, or preempts it, for ever. The scheduler's limits may cut the output at the
    context limit instead, and let the latter wait; or set one for prompts.
    With speculation a step takes blocks for `beyond` tokens more, drafts and look-ahead, within the context limit.
    """
    most = table.prompt_tokens.astype(np.int64) + table.max_tokens
    reasons = np.zeros(len(table), np.int8)
    if limits.context_overflow == "cut":
        most = np.minimum(most, np.maximum(max_model_len, table.prompt_tokens + 1))
    if limits.pool_overflow == "refuse":
        held = most if limits.to_completion else most - 1
        if beyond:
            held = np.maximum(held, np.minimum(held + beyond, max_model_len))
        reasons[held > pool_tokens] = Refusal.KV_POOL
    reasons[most > max_model_len] = Refusal.CONTEXT_LIMIT
    if limits.max_prompt_tokens is not None:
        reasons[table.prompt_tokens > limits.max_prompt_tokens] = Refusal.CONTEXT_LIMIT
    return reasons


class Group:
    """Replicas that may take each other's requests, behind a router. It is what that router may look at.

    `requests` are the unfinished ones of each.
    """

    def __init__(self, router: Router) -> None:
        self.replicas: list[EngineCore] = []
        self.requests: list[int] = []
        self._makers: list[Maker] = []
        self._places: dict[int, int] = {}  # by the replica's number: its place in these lists
        self._router = router

    def add(self, replica: EngineCore, maker: Maker) -> None:
        """Open a replica to the group's traffic; `maker` makes its sequences."""
        self._places[replica.number] = len(self.replicas)
        self.replicas.append(replica)
        self.requests.append(0)
        self._makers.append(maker)

    def known_tokens(self, replica: int) -> int:
        """See `routing.Fleet`."""
        return self.replicas[replica].known_tokens

    def waiting(self, replica: int) -> int:
        """See `routing.Fleet`."""
        return self.replicas[replica].waiting

    def place(self, index: int) -> tuple[EngineCore, SequenceState]:
        """Choose a replica for request `index` and count it there; what the request is to that replica."""
        seq = self._makers[0](index)
        chosen = self._router.choose(seq, self)
        self.requests[chosen] += 1
        if self._makers[chosen] is not self._makers[0]:
            seq = self._makers[chosen](index)
        return self.replicas[chosen], seq

    def prompt_tokens(self, index: int) -> int:
        """The length of the prompt of request `index`."""
        return self._makers[0](index).prompt_tokens

    def cached_tokens(self, index: int) -> int:
        """The most tokens of the prompt of request `index` that a replica has in its prefix cache."""
        most = 0
        for replica, maker in zip(self.replicas, self._makers, strict=True):
            seq, pool = maker(index), replica.batch.pool
            most = max(most, len(pool.find(seq, (seq.prompt_tokens - 1) // pool.block_size)) * pool.block_size)
        return most

    def count_out(self, replica: EngineCore) -> None:
        """One request fewer is unfinished there."""
        self.requests[self._places[replica.number]] -= 1


class Fleet:
    """Takes requests in, and counts them out. `place` starts what is done with a request that is not refused."""

    def __init__(
        self,
        clock: Clock,
        log: RequestLog,
        refused: NDArray[np.int8],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.ended: Callable[[int], None] = lambda index: None  # the source's ear; set once it exists
        self.place: Callable[[int], None] = lambda index: None  # set once there are replicas
        self._clock, self._log = clock, log
        self._refused = refused.tobytes()
        self._progress = progress
        self._done = 0

    def send(self, index: int) -> bool:
        """Take request `index` in; False if it is refused."""
        log = self._log
        log.arrival_ns[index] = self._clock._now
        if self._refused[index]:
            log.refuse(index, Refusal(self._refused[index]))
            self._count()
            return False
        log.status[index] = Status.IN_FLIGHT
        self.place(index)
        return True

    def serve_in(self, group: Group) -> Callable[[int], None]:
        """Starts a request that one replica of `group` serves from beginning to end."""

        def place(index: int) -> None:
            self.serve(*group.place(index))

        return place

    def serve(self, replica: EngineCore, seq: SequenceState) -> None:
        """Let `replica` serve the request from beginning to end."""
        self._log.replica[seq.index] = replica.number
        replica.submit(seq)

    def finished_in(self, group: Group) -> Callable[[EngineCore, Iterable[SequenceState]], None]:
        """The ear of the replicas of `group`: their sequences got their last tokens from one step."""

        def finished(replica: EngineCore, sequences: Iterable[SequenceState]) -> None:
            for _ in sequences:
                group.count_out(replica)
            self.complete(sequences)

        return finished

    def complete(self, sequences: Iterable[SequenceState]) -> None:
        """These requests are done. All are counted out before any client hears of it."""
        log = self._log
        for seq in sequences:
            log.status[seq.index] = Status.COMPLETED
            self._count()
        for seq in sequences:
            self.ended(seq.index)

    def _count(self) -> None:
        self._done += 1
        if self._progress is not None and not self._done % 64:
            self._progress(self._clock._now, self._done)
