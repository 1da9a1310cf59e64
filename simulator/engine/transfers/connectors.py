"""The connectors of prefill and decode cores: requests that wait at either end of a KV transfer."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from simulator.engine.core import EngineCore
from simulator.engine.transfers.kv_transfer import KvTransfer
from simulator.scheduling import Limits, Plan, SequenceState


class Coordinator(Protocol):
    """Interface that is notified of the progress of transfers."""

    def reserved(self, transfer: KvTransfer) -> None:
        """Handle a transfer whose blocks the decode core has reserved."""

    def joins(self, transfer: KvTransfer) -> bool:
        """Hand a request to the decode core; return False if it does not join the batch."""

    def computes(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Handle a step of a prefill core with this plan, from `start_ns` to `end_ns`."""


class Inbox:
    """The connector of a decode core, called before it forms a step.

    Transfers in `wanted` wait for their blocks, first come, first served; the KV of those in `ready` has arrived.
    `pending` counts both; `known_tokens` are those of all requests that are being transferred to this core.

    The policy does not admit sequences that join. So its limits of running sequences, of a step's tokens (of which a
    decode has `tokens`), and of blocks that stay free are applied here.
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

    sees_steps = False

    def serve(self) -> None:
        """Let ready transfers join the batch, and reserve blocks for the next ones, of which some are ready at once."""
        batch = self._core.batch
        if self.ready:
            self._take_over()
        while self.wanted and not batch.waiting and batch.running < self._most:
            transfer = self.wanted[0]
            spare = self._watermark if batch.running or batch.outside else 0  # one sequence alone may have all blocks
            if not batch.reserve(transfer.incoming, transfer.incoming.target - 1, spare, self._to_completion):
                break
            self.wanted.popleft()
            self.pending -= 1
            self._coordinator.reserved(transfer)
        if self.ready:
            self._take_over()

    def _take_over(self) -> None:
        batch = self._core.batch
        while self.ready and batch.running < self._most:
            transfer = self.ready.popleft()
            self.pending -= 1
            if self._coordinator.joins(transfer):
                batch.join(transfer.incoming)

    def want(self, transfer: KvTransfer) -> None:
        """Reserve blocks for a request before the next step, if enough are free."""
        self.wanted.append(transfer)
        self.pending += 1
        self._core.wake()

    def receive(self, transfer: KvTransfer) -> None:
        """Let a request whose KV has arrived join the batch before the next step, if the limits allow it."""
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
        """Do nothing: `serve` has handled the requests."""

    def withdraw(self, seq: SequenceState) -> bool:
        """Return False: a sequence that waits here is not in the batch, and `remove` withdraws it."""
        return False


T = TypeVar("T")


class TransferQueue(Generic[T]):
    """Queue of transfers, of which at most `most` are in flight at once; None is no limit. `begin` starts one."""

    def __init__(self, most: int | None, begin: Callable[[T], None]) -> None:
        self._most = sys.maxsize if most is None else most
        self._begin = begin
        self._in_flight = 0
        self._queue: deque[T] = deque()

    def start(self, transfer: T) -> None:
        """Begin a transfer as soon as the limit allows it."""
        if self._in_flight >= self._most:
            self._queue.append(transfer)
        else:
            self._in_flight += 1
            self._begin(transfer)

    def done(self) -> None:
        """Start the next transfer after one has ended."""
        if self._queue:
            self._begin(self._queue.popleft())
        else:
            self._in_flight -= 1

    def remove(self, transfer: T) -> bool:
        """Remove a transfer that has not started; False if it has."""
        if transfer not in self._queue:
            return False
        self._queue.remove(transfer)
        return True


class Outbox:
    """The connector of a prefill core.

    `queue` is the queue of its transfers; `known_tokens` are those of prompts that it gets when a decode core has
    reserved their blocks.
    """

    pending = 0

    def __init__(self, queue: TransferQueue[KvTransfer], coordinator: Coordinator | None) -> None:
        self.queue = queue
        self.known_tokens = 0
        self.sees_steps = coordinator is not None
        self._coordinator = coordinator  # None unless KV is sent layer by layer

    def serve(self) -> None:
        """Do nothing: transfers start when prompts are computed."""

    def scheduled(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Send the KV that the step computes, layer by layer."""
        if self._coordinator is not None and (plan.chunks or plan.work):
            self._coordinator.computes(plan, start_ns, end_ns)

    def withdraw(self, seq: SequenceState) -> bool:
        """Return False: no sequence is parked here."""
        return False
