"""Transfers of a request's KV from a prefill core to a decode core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.engine.core import EngineCore
from simulator.scheduling import SequenceState

if TYPE_CHECKING:
    from simulator.engine.transfers.connectors import Inbox, Outbox


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Layout of transferred KV: bytes of a token in all layers, and contiguous pieces of memory of a block."""

    token_bytes: int
    layers: int
    block_size: int
    descriptors_per_block: int

    def size(self, tokens: int) -> tuple[int, int]:
        """Return the bytes of `tokens` tokens, and the number of contiguous pieces of memory that have them."""
        return tokens * self.token_bytes, -(-tokens // self.block_size) * self.descriptors_per_block


@dataclass(frozen=True, slots=True)
class CorePair:
    """A prefill core, `source`, and a decode core, `target`: their numbers, their connectors, the route between them,
    and the layout of the KV that is sent."""

    numbers: tuple[int, int]
    source: EngineCore
    outbox: Outbox
    target: EngineCore
    inbox: Inbox
    route: tuple[int, ...]
    layout: KvLayout


@dataclass(eq=False)
class KvTransfer:
    """The transfer of one request's KV from a prefill core to a decode core; `row` is its row in the log.

    The request is `outgoing` in the prefill core, and `incoming` in the decode core.

    Layer by layer, the KV of each chunk is sent by itself: `spans` are to be sent, as (tokens, start and end of their
    step in ns), `parts` is the number in flight, including the set-up, and `sent` the tokens of the prompt in the parts
    so far, -1 before the first.
    """

    pair: CorePair
    index: int  # number of the request
    outgoing: SequenceState
    incoming: SequenceState
    row: list[int]
    failures: int = field(default=0, init=False)  # number of further tries that fail
    tries: int = field(default=0, init=False)
    computed: bool = field(default=False, init=False)  # whether the prompt is computed
    open: bool = field(default=False, init=False)  # whether parts may be sent
    over: bool = field(default=False, init=False)  # whether the request has ended, so that its KV is discarded
    #: Whether the request ends as soon as its prefill core has withdrawn it.
    withdrawn: bool = field(default=False, init=False)
    spans: tuple[tuple[int, int, int], ...] = field(default=(), init=False)
    parts: int = field(default=1, init=False)
    sent: int = field(default=-1, init=False)
