"""Transfers over shared links, by the clock.

The network has one pending event: the earliest end. While there are no streams (`streams.py`), no event is scheduled
for the beginning of a flow, but one for the end that the flow has if no other flow begins before it; so most transfers
take one event and no stream. If another flow begins before that end, both are added to streams, each from its own
beginning on.

Bytes are counted in units of 2^-40 x 10^-9 byte, so that a rate in units a nanosecond is one in bytes a second times
2^40. All counts are ints: the units of flows and those of links are equal without rounding.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.transfers.flows import BYTE, Flow, lone_end
from simulator.engine.transfers.streams import Streams
from simulator.network import Link

#: Largest latency of the links of a route, largest cost of a descriptor, both in ns, and bytes/s of the slowest link.
RouteFacts = tuple[int, int, int]


class Network:
    """Links shared by flows. Link i is `links[i]`; `sharing` is `max_min` or `fifo`.

    With `fifo`, flows over a link are sent one after the other, in the order in which they were set up.
    """

    def __init__(self, clock: Clock, links: Sequence[Link], sharing: str = "max_min") -> None:
        self.clock, self.links, self.in_turn = clock, tuple(links), sharing == "fifo"
        self._streams = Streams(self.links, sharing)
        self._carried_alone = [0] * len(self.links)  # bytes of flows without a stream
        self._routes: dict[tuple[int, ...], RouteFacts] = {}
        self._setting_up: list[tuple[int, int, Flow]] = []  # a heap of (beginning, number, flow)
        self._sent = 0
        self._due_ns = math.inf  # time of the pending event; an event at another time is stale

    def send(
        self,
        route: tuple[int, ...],
        size_bytes: int,
        descriptors: int,
        done: Callable[[], None],
        cap: int | None = None,
    ) -> Flow:
        """Send `size_bytes` over the links of `route`, at `cap` bytes a second at most; call `done` at the end.

        The bytes flow after `setup_ns`. The end is rounded up to a nanosecond, and `done` is never called from within
        this call. Raises ValueError for an empty route, and for sizes below 0 and caps not above it.
        """
        if not route or size_bytes < 0 or descriptors < 0 or (cap is not None and cap <= 0):
            raise ValueError(f"no transfer: route {route}, {size_bytes} bytes, {descriptors} descriptors, cap {cap}")
        latency_ns, descriptor_ns, bytes_per_s = self._routes.get(route) or self._add_route(route)
        number = self._sent = self._sent + 1
        now = self.clock._now
        begins_ns = now + latency_ns + descriptors * descriptor_ns
        flow = Flow(number, route, size_bytes, cap, done, begins_ns)
        flow.lone_end_ns = lone_end(flow, bytes_per_s)
        heapq.heappush(self._setting_up, (begins_ns, number, flow))
        if begins_ns == now and (self._streams.active or len(self._setting_up) > 1):
            self._begin()
        self._await()
        return flow

    def setup_ns(self, route: tuple[int, ...], descriptors: int) -> int:
        """Return the time before the bytes of a transfer flow, in ns.

        The largest latency of its links, and for each of its `descriptors` (contiguous pieces of memory) the largest
        cost of one.
        """
        latency_ns, descriptor_ns, _ = self._routes.get(route) or self._add_route(route)
        return latency_ns + descriptors * descriptor_ns

    def _add_route(self, route: tuple[int, ...]) -> RouteFacts:
        latency_ns = max(self.links[link].latency_ns for link in route)
        descriptor_ns = max(self.links[link].descriptor_ns for link in route)
        facts = latency_ns, descriptor_ns, min(self.links[link].bytes_per_s for link in route)
        self._routes[route] = facts
        return facts

    def abort(self, flow: Flow) -> int:
        """End a flow now if it has not ended, without a call of its `done`; return its whole bytes that have flowed."""
        self._begin()
        flow.aborted = True
        if flow.ended_ns < 0:
            self._streams.end(flow, self.clock._now)
        self._await()
        return 0 if flow.began_ns < 0 else (flow.size_bytes * BYTE - flow.left) // BYTE

    def uncap(self, flow: Flow) -> None:
        """Remove the cap of a flow from now on."""
        self._begin()
        flow.cap = None
        flow.lone_end_ns = lone_end(flow, self._routes[flow.route][2])
        self._streams.uncap(flow, self.clock._now)
        self._await()

    def carried_bytes(self, link: int) -> int:
        """Return the whole bytes that a link has carried by now."""
        self._begin()
        self._await()
        self._streams.settle(link, self.clock._now)
        return self._streams.carried[link] // BYTE + self._carried_alone[link]

    def check(self) -> None:
        """Raise AssertionError if a link exceeds its capacity, or has not carried the units that its flows got."""
        self._begin()
        self._await()
        self._streams.check(self.clock._now)

    def _begin(self) -> None:
        """Add the flows that have been set up by now to streams."""
        setting_up, now = self._setting_up, self.clock._now
        while setting_up and setting_up[0][0] <= now:
            flow = heapq.heappop(setting_up)[2]
            if flow.ended_ns < 0:  # not aborted while it was set up
                self._streams.begin(flow)

    # --- the pending event

    def _await(self) -> None:
        """Schedule an event at the first end, or at a beginning that may change the rates of others, if none is pending
        before it; an early event is harmless."""
        setting_up = self._setting_up
        if self._streams.active:
            due_ns = self._streams.first_end()
            if setting_up and setting_up[0][0] < due_ns:
                due_ns = setting_up[0][0]
        elif setting_up:
            due_ns = setting_up[0][2].lone_end_ns
            if len(setting_up) > 1:
                due_ns = min(due_ns, self._second_ns())
        else:
            return
        if due_ns < self._due_ns:
            self._due_ns = due_ns
            self.clock.at(int(due_ns), self._wake)

    def _second_ns(self) -> int:
        """Return the beginning of the second of the flows that are being set up, in ns; there must be two."""
        setting_up = self._setting_up
        return setting_up[1][0] if len(setting_up) == 2 else min(setting_up[1][0], setting_up[2][0])

    def _wake(self, _: Event) -> None:
        """End all flows that are complete now, then call their `done`, in the order in which the flows were sent."""
        now = self.clock._now
        if now != self._due_ns:
            return
        self._due_ns = math.inf
        alone = self._end_alone(now)
        if alone is not None:
            over = [alone]
        else:
            self._begin()
            over = self._streams.complete(now)
        if self._setting_up or self._streams.active:
            self._await()
        for flow in over:
            if not flow.aborted:  # by the `done` of an earlier one
                flow.done()

    def _end_alone(self, now: int) -> Flow | None:
        """End and return the flow that is complete now if no other one has begun by now; else return None."""
        setting_up = self._setting_up
        if self._streams.active or not setting_up:
            return None
        flow = setting_up[0][2]
        if flow.lone_end_ns != now or flow.aborted or (len(setting_up) > 1 and self._second_ns() <= now):
            return None
        heapq.heappop(setting_up)
        flow.began_ns, flow.ended_ns = flow.begins_ns, now
        for link in flow.route:
            self._carried_alone[link] += flow.size_bytes
        return flow
