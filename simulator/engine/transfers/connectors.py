"""The connectors of prefill and decode cores: requests that wait at either end of a KV transfer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from simulator.engine.core import EngineCore
from simulator.engine.transfers.kv_transfer import KvTransfer
from simulator.scheduling import Limits, Plan, SequenceState


class Coordinator(Protocol):
    """Is told how far a transfer has come."""

    def reserved(self, transfer: KvTransfer) -> None:
        """The decode core has the blocks."""

    def joins(self, transfer: KvTransfer) -> bool:
        """Let the decode core take the request over; False if it does not join the batch."""

    def computes(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """A prefill core runs a step of this plan from `start_ns` to `end_ns`."""


class Inbox:
    """The connector of a decode core, which looks here whenever it forms a step.

    Transfers that are `wanted` lack their blocks, first come, first served; the KV of those that are `ready` is here.
    `pending` counts both; `known_tokens` are those of all requests that are on their way here.

    Sequences that join pass no policy, so that the policy's limits of running sequences, of a step's tokens (a decode
    has `tokens` of them), and of the blocks that stay free are kept here.
    """

    def __init__(self, core: EngineCore, limits: Limits, tokens: int, coordinator: Coordinator) -> None:
        self.wanted: deque[KvTransfer] = deque()
        self.ready: deque[KvTransfer] = deque()
        self.known_tokens = 0
        self.pending = 0
        self._core = core
        self._most, self._to_completion = limits.most_decodes(tokens), limits.sets_aside
        self._watermark = limits.spare_blocks(core.batch.pool.blocks)
        self._coordinator = coordinator

    def serve(self) -> None:
        """Let ready transfers join the batch, and reserve blocks for the next ones; those for which nothing has to be
        sent are ready at once."""
        batch = self._core.batch
        self._take_over()
        while self.wanted and not batch.waiting and batch.running < self._most:
            transfer = self.wanted[0]
            spare = self._watermark if batch.running or batch.outside else 0  # alone, a sequence may have all
            if not batch.reserve(transfer.incoming, transfer.incoming.target - 1, spare, self._to_completion):
                break
            self.wanted.popleft()
            self.pending -= 1
            self._coordinator.reserved(transfer)
        self._take_over()

    def _take_over(self) -> None:
        batch = self._core.batch
        while self.ready and batch.running < self._most:
            transfer = self.ready.popleft()
            self.pending -= 1
            if self._coordinator.joins(transfer):
                batch.join(transfer.incoming)

    def want(self, transfer: KvTransfer) -> None:
        """Reserve blocks for a request when the next step is formed, if there are some."""
        self.wanted.append(transfer)
        self.pending += 1
        self._core.wake()

    def receive(self, transfer: KvTransfer) -> None:
        """Let a request whose KV is here join the batch when the next step is formed, if there is a place."""
        self.ready.append(transfer)
        self.pending += 1
        self._core.wake()

    def remove(self, transfer: KvTransfer) -> bool:
        """Remove a transfer that is wanted or ready; False if it is neither."""
        for queue in (self.wanted, self.ready):
            if transfer in queue:
                queue.remove(transfer)
                self.pending -= 1
                return True
        return False

    def scheduled(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Do nothing: all has been done before the step was formed."""

    def withdraw(self, seq: SequenceState) -> bool:
        """Return False: a sequence that waits here is not in the batch, and is withdrawn from here."""
        return False


class Turns:
    """Transfers of which at most `most` are under way at once, the others in turn; None is no limit."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._under_way = 0
        self._queue: deque[tuple[object, Callable[[], object]]] = deque()

    def start(self, key: object, begin: Callable[[], object]) -> None:
        """Call `begin` as soon as there is a place; `key` names the transfer."""
        if self._most is not None and self._under_way >= self._most:
            self._queue.append((key, begin))
            return
        self._under_way += 1
        begin()

    def done(self) -> None:
        """Count out a transfer that has ended."""
        if self._queue:
            self._queue.popleft()[1]()
        else:
            self._under_way -= 1

    def remove(self, key: object) -> bool:
        """Remove a transfer that has not begun; False if it has."""
        for at, (each, _) in enumerate(self._queue):
            if each is key:
                del self._queue[at]
                return True
        return False


class Outbox:
    """The connector of a prefill core: `turns` of its transfers, and `known_tokens` of the prompts that it will get as
    soon as a decode core has a place for them."""

    pending = 0

    def __init__(self, turns: Turns, coordinator: Coordinator | None) -> None:
        self.turns = turns
        self.known_tokens = 0
        self._coordinator = coordinator  # None unless KV is sent layer by layer

    def serve(self) -> None:
        """Do nothing: transfers begin when prompts are computed."""

    def scheduled(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Send the KV that the step computes, layer by layer."""
        if self._coordinator is not None and (plan.chunks or plan.work):
            self._coordinator.computes(plan, start_ns, end_ns)

    def withdraw(self, seq: SequenceState) -> bool:
        """Return False: no sequence is parked here."""
        return False
