"""Transfer of KV layer by layer, during the prefill that computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simpy.events import Event

from simulator.engine.transfers.flows import Flow
from simulator.engine.transfers.links import Network


class Layers(NamedTuple):
    """The `layers` of a model, of which `together` are sent in a group; the last group has the rest.

    `setup_ns` is the software's time for each group, before its bytes flow.
    """

    layers: int
    together: int = 1
    setup_ns: int = 0

    @property
    def groups(self) -> int:
        """Number of groups."""
        return -(-self.layers // self.together)

    @property
    def last(self) -> int:
        """Number of layers of the last group."""
        return self.layers - self.together * (self.groups - 1)


class Payload(NamedTuple):
    """The bytes of a transfer, the number of contiguous pieces of memory, and the layers."""

    size_bytes: int
    descriptors: int
    layers: Layers


class LayerwiseTransfer:
    """A layer-wise transfer as two flows.

    A prefill of equal layers runs over `prefill_ns`, (start, end). Its groups of layers are set up one after the other,
    each when it is computed. All groups except the last are one flow, which starts when the first is set up, and is no
    faster than they are computed and set up; the last group is sent when it is set up and that flow has ended. On free
    links with time Tx for the whole, and G equal groups with set-up d, the time after a prefill of Tp is the same as
    with one flow for each group:

        max(d + Tx / G, d + Tx - Tp (G - 1) / G, G d + Tx / G - Tp (G - 1) / G)

    With `fifo` links the first flow has no cap, since it would delay later flows.
    """

    def __init__(
        self,
        network: Network,
        route: tuple[int, ...],
        payload: Payload,
        prefill_ns: tuple[int, int],
        done: Callable[[], None],
    ) -> None:
        self._network, self._route, self._done = network, route, done
        (size_bytes, descriptors, layers), (start_ns, end_ns) = payload, prefill_ns
        self._last_bytes = -(-size_bytes * layers.last // layers.layers)
        self._last_descriptors = -(-descriptors * layers.last // layers.layers)
        self._earlier = size_bytes - self._last_bytes, descriptors - self._last_descriptors
        self._flow: Flow | None = None
        now, several = network.clock._now, layers.groups > 1
        self._waits_for = 2 if several else 1
        first_ns = max(now, start_ns - (start_ns - end_ns) * layers.together // layers.layers) if several else now
        #: Time at which the last group is computed and all are set up.
        self._ready_ns = max(max(now, end_ns) + layers.setup_ns, first_ns + layers.groups * layers.setup_ns)
        if several:
            network.clock.at(first_ns + layers.setup_ns, self._send_earlier)
        network.clock.at(self._ready_ns, self._set_up)

    def _send_earlier(self, _: Event) -> None:
        size_bytes, descriptors = self._earlier
        filling_ns = self._ready_ns - self._network.clock._now - self._network.setup_ns(self._route, descriptors)
        cap = None
        if size_bytes and filling_ns > 0 and not self._network.in_turn:
            cap = -(-size_bytes * 10**9 // filling_ns)
        self._flow = self._network.send(self._route, size_bytes, descriptors, self._proceed, cap)

    def _set_up(self, _: Event) -> None:
        if self._flow is not None:
            self._network.uncap(self._flow)
        self._proceed()

    def _proceed(self) -> None:
        """Send the last group when it is set up and the others have been sent."""
        self._waits_for -= 1
        if not self._waits_for:
            self._network.send(self._route, self._last_bytes, self._last_descriptors, self._done)
