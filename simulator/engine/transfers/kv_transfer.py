"""Transfers of a request's KV from a prefill core to a decode core."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine.core import EngineCore
from simulator.scheduling import SequenceState


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
class Ends:
    """The two engine cores of a transfer, each with its sequence of the request.

    `source` computes the prompt, as `outgoing`; `target` decodes, as `incoming`.
    """

    source: EngineCore
    outgoing: SequenceState
    target: EngineCore
    incoming: SequenceState


class KvTransfer:
    """The transfer of one request's KV from a prefill core to a decode core; `row` is its row in the log.

    Layer by layer, the KV of each chunk is sent by itself: `spans` are to be sent, as (tokens, start and end of their
    step in ns), `parts` is the number in flight, including the set-up, and `sent` the tokens of the prompt in the parts
    so far, -1 before the first.
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
