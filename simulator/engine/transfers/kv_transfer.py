"""Requests whose KV goes from a prefill core to a decode core."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine.core import EngineCore
from simulator.scheduling import SequenceState


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The bytes of a transfer of KV: those of a token in all layers, and the pieces of memory of a block of them."""

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


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a transfer: the core that computes the prompt of a request, as `outgoing`, and the core that
    decodes it, as `incoming`."""

    source: EngineCore
    outgoing: SequenceState
    target: EngineCore
    incoming: SequenceState


class KvTransfer:
    """One request on its way from a prefill core to a decode core; `row` is its row in the log.

    Layer by layer, the KV of each chunk is sent by itself: `spans` wait to be sent, as (tokens, start and end of their
    step in ns), `parts` are under way, the set-up counted as one, and `sent` tokens of the prompt are in the parts so
    far, -1 before the first.
    """

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
        "withdrawn",
    )

    def __init__(self, ends: Ends, layout: KvLayout, row: list[int], failures: int) -> None:
        self.source, self.outgoing = ends.source, ends.outgoing
        self.target, self.incoming = ends.target, ends.incoming
        self.layout = layout
        self.row = row
        self.failures = failures  # of its transfer that are still to come
        self.tries = 0
        self.computed = False  # the prompt is
        self.open = False  # parts may be sent as they are computed
        self.over = False  # the request has ended: what arrives is discarded
        self.withdrawn = False  # the request is to end as soon as its prefill core has given it up
        self.spans: list[tuple[int, int, int]] = []
        self.parts = 1
        self.sent = -1

    @property
    def index(self) -> int:
        """The number of the request."""
        return self.incoming.index

    @property
    def tokens(self) -> int:
        """Tokens whose KV is sent: all that are computed, but those that the target has in its prefix cache."""
        return self.incoming.computed - self.incoming.cached
