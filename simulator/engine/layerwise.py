"""A KV cache that is sent layer by layer, while the prefill that computes it goes on."""

from __future__ import annotations

from collections.abc import Callable

from simpy.events import Event

from simulator.engine.links import Flow, Network


class LayerwiseTransfer:
    """A layer-wise transfer as two flows.

    A prefill of `layers` equal layers runs from `start_ns` to `end_ns`. All layers but the last are one flow from the
    end of the first on, which is no faster than they are computed; the last follows when both are there. On free links
    that take Tx for the whole, the prefill's end is exposed to max(Tx / L, Tx - Tp (L - 1) / L) more, as with a flow a
    layer. Where flows take turns the first has no cap: it would hold up those behind it.
    """

    def __init__(
        self,
        network: Network,
        route: tuple[int, ...],
        size_bytes: int,
        layers: int,
        descriptors: int,
        start_ns: int,
        end_ns: int,
        done: Callable[[], None],
    ) -> None:
        self._network, self._route, self._done, self._end_ns = network, route, done, end_ns
        self._last_bytes, self._last_descriptors = -(-size_bytes // layers), -(-descriptors // layers)
        self._earlier = size_bytes - self._last_bytes, descriptors - self._last_descriptors
        self._waits_for = 2 if layers > 1 else 1
        self._flow: Flow | None = None
        now = network.clock._now
        if layers > 1:
            first_ns = start_ns - (start_ns - end_ns) // layers
            network.clock.at(max(now, first_ns), self._send_earlier)
        network.clock.at(max(now, end_ns), self._computed)

    def _send_earlier(self, _: Event) -> None:
        size_bytes, descriptors = self._earlier
        computing_ns = self._end_ns - self._network.clock._now - self._network.setup_ns(self._route, descriptors)
        cap = None
        if size_bytes and computing_ns > 0 and not self._network.in_turn:
            cap = -(-size_bytes * 10**9 // computing_ns)
        self._flow = self._network.send(self._route, size_bytes, descriptors, self._proceed, cap)

    def _computed(self, _: Event) -> None:
        if self._flow is not None:
            self._network.uncap(self._flow)
        self._proceed()

    def _proceed(self) -> None:
        """Send the last layer once it is computed and the others are over."""
        self._waits_for -= 1
        if not self._waits_for:
            self._network.send(self._route, self._last_bytes, self._last_descriptors, self._done)
