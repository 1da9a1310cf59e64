"""Sender of a request's KV from its prefill core to its decode core, as a whole or layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from simpy.events import Event

from simulator.engine.logs.transfer_log import Moment
from simulator.engine.transfers.kv_transfer import KvLayout, KvTransfer
from simulator.engine.transfers.layerwise import Layers, LayerwiseTransfer, Payload
from simulator.engine.transfers.links import Network
from simulator.scenario.handover import Handover


@dataclass(frozen=True, slots=True)
class TransferPaths:
    """The network between prefill and decode cores: `route` and `layout` of a transfer by the numbers of its cores.

    `failures(i)` is the number of tries of request i's transfer that fail; None if none do.
    """

    network: Network
    route: Callable[[int, int], tuple[int, ...]]
    layout: Callable[[int, int], KvLayout]
    failures: Callable[[int], int] | None


class KvSender:
    """Sender that starts transfers, and calls `arrived` when one has arrived or failed."""

    def __init__(self, settings: Handover, network: Network, arrived: Callable[[KvTransfer], None]) -> None:
        self.layerwise = settings.overlap == "layerwise"
        self._settings, self._network, self._arrived = settings, network, arrived
        self._clock = network.clock

    def begin(self, transfer: KvTransfer, _: Event | None = None) -> None:
        """Start the transfer, or try it again: first its set-up, then its bytes."""
        now, setup_ns = self._clock._now, self._settings.setup
        if not transfer.tries:
            transfer.row[Moment.START] = now
        transfer.tries += 1
        if setup_ns:
            self._clock.at(now + setup_ns, partial(self._set_up, transfer))
        else:
            self._set_up(transfer)

    def _set_up(self, transfer: KvTransfer, _: Event | None = None) -> None:
        if self.layerwise and transfer.tries == 1:
            transfer.parts -= 1
            transfer.open = True
            self._send_spans(transfer)
            self.finish(transfer)
            return
        tokens = transfer.incoming.computed - transfer.incoming.cached  # the decode core has the cached ones
        if tokens:
            size_bytes, descriptors = transfer.pair.layout.size(tokens)
            transfer.row[Moment.BYTES] += size_bytes
            self._network.send(transfer.pair.route, size_bytes, descriptors, partial(self._arrived, transfer))
        else:
            self._arrived(transfer)

    # --- layer by layer

    def add_chunk(self, transfer: KvTransfer, computed: int, span_ns: tuple[int, int]) -> bool:
        """Add a chunk and send it if the transfer is set up; return whether it is the first one.

        A step computes it over `span_ns`, (start, end), after which `computed` tokens of the prompt are computed.
        """
        first, upto = transfer.sent < 0, min(computed, transfer.incoming.computed)
        tokens = upto - (transfer.incoming.cached if first else transfer.sent)
        transfer.sent = max(transfer.sent, upto)  # tokens that are computed again after a preemption were sent before
        if tokens > 0:
            transfer.spans += ((tokens, *span_ns),)
        if transfer.open and not first:
            self._send_spans(transfer)
        return first

    def finish(self, transfer: KvTransfer) -> None:
        """End the transfer if the prompt is computed and no part is in flight."""
        if transfer.computed and not transfer.parts:
            self._arrived(transfer)

    def _send_spans(self, transfer: KvTransfer) -> None:
        """Send the KV of the chunks that are being computed."""
        settings = self._settings
        layers = Layers(transfer.pair.layout.layers, settings.layers_per_group or 1, settings.group_setup or 0)
        for tokens, start_ns, end_ns in transfer.spans:
            size_bytes, descriptors = transfer.pair.layout.size(tokens)
            payload = Payload(size_bytes, descriptors, layers)
            transfer.row[Moment.BYTES] += size_bytes
            transfer.parts += 1
            done = partial(self._part_done, transfer)
            LayerwiseTransfer(self._network, transfer.pair.route, payload, (start_ns, end_ns), done)
        transfer.spans = ()

    def _part_done(self, transfer: KvTransfer) -> None:
        transfer.parts -= 1
        self.finish(transfer)
