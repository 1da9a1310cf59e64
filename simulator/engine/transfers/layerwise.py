"""A KV cache that is sent layer by layer, while the prefill that computes it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simpy.events import Event

from simulator.engine.transfers.links import Flow, Network


class Groups(NamedTuple):
    """How the `layers` of a model travel: `together` in a group, each group with `setup_ns` of the software's before
    its bytes can flow; the last group has what is left."""

    layers: int
    together: int = 1
    setup_ns: int = 0

    @property
    def number(self) -> int:
        """How many groups there are."""
        return -(-self.layers // self.together)

    @property
    def last(self) -> int:
        """Layers of the last one."""
        return self.layers - self.together * (self.number - 1)


class LayerwiseTransfer:
    """A layer-wise transfer as two flows.

    A prefill of equal layers runs from `start_ns` to `end_ns`. Its groups of layers are set up one after the other,
    each when it is computed. All groups but the last are one flow from when the first is set up on, which is no faster
    than they are computed and set up; the last follows when both are there. On free links that take Tx for the whole,
    with G equal groups that take d to set up, what is exposed after a prefill of Tp is as with a flow a group:

        max(d + Tx / G, d + Tx - Tp (G - 1) / G, G d + Tx / G - Tp (G - 1) / G)

    Where flows take turns the first has no cap: it would hold up those behind it.
    """

    def __init__(
        self,
        network: Network,
        route: tuple[int, ...],
        size_bytes: int,
        groups: Groups,
        descriptors: int,
        start_ns: int,
        end_ns: int,
        done: Callable[[], None],
    ) -> None:
        self._network, self._route, self._done = network, route, done
        layers, last = groups.layers, groups.last
        self._last_bytes, self._last_descriptors = -(-size_bytes * last // layers), -(-descriptors * last // layers)
        self._earlier = size_bytes - self._last_bytes, descriptors - self._last_descriptors
        self._flow: Flow | None = None
        now, several = network.clock._now, groups.number > 1
        self._waits_for = 2 if several else 1
        first_ns = max(now, start_ns - (start_ns - end_ns) * groups.together // layers) if several else now
        #: When the last group is computed and all are set up.
        self._ready_ns = max(max(now, end_ns) + groups.setup_ns, first_ns + groups.number * groups.setup_ns)
        if several:
            network.clock.at(first_ns + groups.setup_ns, self._send_earlier)
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
        """Send the last group once it is set up and the others are over."""
        self._waits_for -= 1
        if not self._waits_for:
            self._network.send(self._route, self._last_bytes, self._last_descriptors, self._done)
