"""Requests on their way from a prefill replica to a decode replica, and the boxes where they wait at both ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from simulator.engine.core import EngineCore
from simulator.scheduling import Limits, SequenceState


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What a transfer of KV consists of: bytes a token of all layers, and pieces of memory a block of them."""

    token_bytes: int
    layers: int
    block_size: int
    descriptors_per_block: int

    def size_bytes(self, tokens: int) -> int:
        """Bytes of so many tokens."""
        return tokens * self.token_bytes

    def descriptors(self, tokens: int) -> int:
        """Pieces of memory that so many tokens lie in."""
        return -(-tokens // self.block_size) * self.descriptors_per_block


class KvTransfer:
    """One request on its way from `source`, as `outgoing`, to `target`, as `incoming`."""

    __slots__ = (
        "computed",
        "failures",
        "incoming",
        "layout",
        "open",
        "outgoing",
        "over",
        "parts",
        "row",
        "sent",
        "source",
        "spans",
        "target",
        "tries",
    )

    def __init__(
        self,
        source: EngineCore,
        outgoing: SequenceState,
        target: EngineCore,
        incoming: SequenceState,
        layout: KvLayout,
        row: list[int],
    ) -> None:
        self.source = source
        self.outgoing = outgoing
        self.target = target
        self.incoming = incoming
        self.layout = layout
        self.row = row  # in the log
        self.failures = 0  # of its transfer that are still to come
        self.tries = 0
        self.computed = False  # is the prompt?
        self.open = False  # may parts be sent as they are computed?
        self.over = False  # has the request ended with its first token?
        # Layer by layer, each chunk's KV is a part of its own; first it waits here: tokens, start and end of its step.
        self.spans: list[tuple[int, int, int]] = []
        self.parts = 1  # that are under way; the set-up is one
        self.sent = -1  # tokens in the parts so far, counted from the first one of the prompt

    @property
    def tokens(self) -> int:
        """Tokens whose KV travels: all that are computed, but those that the target has in its prefix cache."""
        return self.incoming.computed - self.incoming.cached


class Guide(Protocol):
    """Hears how far a transfer has come; see `handover.Handovers`."""

    def reserved(self, transfer: KvTransfer) -> None:
        """The decode side has the blocks."""

    def joins(self, transfer: KvTransfer) -> bool:
        """The decode side takes the request over; False if it does not join the batch."""


class Inbox:
    """What a decode replica is to take over. The replica looks here whenever it forms a step.

    `wanted` transfers lack their blocks, first come, first served; what is `ready` has its KV here; `pending` counts
    both. `known_tokens` are those of all requests that are on their way here.

    What joins passes no policy, so that the policy's limits of running sequences, of a step's tokens (of which a decode
    has `tokens`), and of the blocks that stay free hold here.
    """

    def __init__(self, replica: EngineCore, limits: Limits, tokens: int, guide: Guide) -> None:
        self.wanted: deque[KvTransfer] = deque()
        self.ready: deque[KvTransfer] = deque()
        self.known_tokens = 0
        self.pending = 0
        self._replica = replica
        self._most, self._to_completion = limits.most_decodes(tokens), limits.sets_aside
        self._watermark = limits.spare_blocks(replica.batch.pool.blocks)
        self._guide = guide

    def serve(self) -> None:
        """Let what is ready join the batch, and reserve blocks for what comes next; its KV is here at once if nothing
        has to be sent."""
        batch = self._replica.batch
        self._take_over()
        while self.wanted and not batch.waiting and batch.running < self._most:
            transfer = self.wanted[0]
            spare = self._watermark if batch.running or batch.outside else 0  # alone, a sequence may have all
            if not batch.reserve(transfer.incoming, transfer.incoming.target - 1, spare, self._to_completion):
                break
            self.wanted.popleft()
            self.pending -= 1
            self._guide.reserved(transfer)
        self._take_over()

    def _take_over(self) -> None:
        batch = self._replica.batch
        while self.ready and batch.running < self._most:
            transfer = self.ready.popleft()
            self.pending -= 1
            if self._guide.joins(transfer):
                batch.join(transfer.incoming)

    def want(self, transfer: KvTransfer) -> None:
        """A request needs blocks here."""
        self.wanted.append(transfer)
        self.pending += 1
        self._replica.wake()

    def receive(self, transfer: KvTransfer) -> None:
        """The KV of a request is here."""
        self.ready.append(transfer)
        self.pending += 1
        self._replica.wake()


class Outbox:
    """The transfers of a prefill replica: at most `most` at once, the others in turn."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._under_way = 0
        self._queue: deque[Callable[[], object]] = deque()

    def start(self, begin: Callable[[], object]) -> None:
        """Begin a transfer as soon as may be."""
        if self._most is not None and self._under_way >= self._most:
            self._queue.append(begin)
            return
        self._under_way += 1
        begin()

    def done(self) -> None:
        """A transfer has ended."""
        if self._queue:
            self._queue.popleft()()
        else:
            self._under_way -= 1
