"""Transfers of a request's KV from a prefill core to a decode core."""

from __future__ import annotations

from dataclasses import dataclass
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

    def size_bytes(self, tokens: int) -> int:
        """Return the bytes of `tokens` tokens."""
        return tokens * self.token_bytes

    def descriptors(self, tokens: int) -> int:
        """Return the number of contiguous pieces of memory of `tokens` tokens."""
        return -(-tokens // self.block_size) * self.descriptors_per_block


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


class KvTransfer:
    """The transfer of one request's KV from a prefill core to a decode core; `row` is its row in the log.

    The request is `outgoing` in the prefill core, and `incoming` in the decode core.

    Layer by layer, the KV of each chunk is sent by itself: `spans` are to be sent, as (tokens, start and end of their
    step in ns), `parts` is the number in flight, including the set-up, and `sent` the tokens of the prompt in the parts
    so far, -1 before the first.
    """

    __slots__ = (
        "computed",
        "failures",
        "incoming",
        "open",
        "outgoing",
        "over",
        "pair",
        "parts",
        "row",
        "sent",
        "spans",
        "tries",
        "withdrawn",
    )

    def __init__(
        self, pair: CorePair, outgoing: SequenceState, incoming: SequenceState, row: list[int], failures: int
    ) -> None:
        self.pair = pair
        self.outgoing = outgoing
        self.incoming = incoming
        self.row = row
        self.failures = failures  # number of further tries that fail
        self.tries = 0
        self.computed = False  # whether the prompt is computed
        self.open = False  # whether parts may be sent
        self.over = False  # whether the request has ended, so that its KV is discarded
        self.withdrawn = False  # whether the request ends as soon as its prefill core has withdrawn it
        self.spans: list[tuple[int, int, int]] = []
        self.parts = 1
        self.sent = -1

    @property
    def index(self) -> int:
        """Number of the request."""
        return self.incoming.index

    @property
    def tokens(self) -> int:
        """Tokens whose KV is sent: the computed ones, except those in the prefix cache of the target."""
        return self.incoming.computed - self.incoming.cached
