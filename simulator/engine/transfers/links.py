"""Transfers over shared links, by the clock.

Flows over the same links with the same cap have the same rate, so that they form one *stream*: one number counts the
units that each of its flows has got since its start, and a flow ends when this number has grown by its size. A change
takes time for the streams connected to it by links, however many flows they have, and the network has one pending
event: the earliest end.

Bytes are counted in units of 2^-40 x 10^-9 byte, so that a rate in units a nanosecond is one in bytes a second times
2^40. All counts are ints: the units of flows and those of links are equal without rounding.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial

from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.transfers.flows import BYTE, CRUMB, SCALE, Flow, Stream, first_end
from simulator.network import SHARING, Link


class Network:
    """Links shared by flows. Link i is `links[i]`; `sharing` is `max_min` or `fifo`.

    With `fifo`, flows over a link are sent one after the other, in the order in which they were set up.
    """

    def __init__(self, clock: Clock, links: Sequence[Link], sharing: str = "max_min") -> None:
        self.clock, self.links, self.in_turn = clock, tuple(links), sharing == "fifo"
        self._rates = SHARING[sharing]
        self._capacities = [link.bytes_per_s << SCALE for link in links]
        self._carried = [0] * len(self.links)  # units that each link has carried, by rates and time
        self._counted = [0] * len(self.links)  # units of ended flows
        self._streams: dict[tuple[object, ...], Stream] = {}
        self._on: list[dict[int, Stream]] = [{} for _ in links]  # streams of each link, by number
        self._ends: list[tuple[float, int, Stream]] = []  # a heap; an entry with another end than its stream is stale
        self._numbers = 0
        self._waits: dict[tuple[int, ...], tuple[int, int]] = {}  # by route: largest latency, and cost of a descriptor
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
        this call. Raises ValueError for an empty route, a size below 0, and a cap of 0 or below.
        """
        if not route or size_bytes < 0 or descriptors < 0 or (cap is not None and cap <= 0):
            raise ValueError(f"no transfer: route {route}, {size_bytes} bytes, {descriptors} descriptors, cap {cap}")
        now = self.clock._now
        flow = Flow(self._number(), route, size_bytes, cap, done, now, left=size_bytes * BYTE)
        setup_ns = self.setup_ns(route, descriptors)
        if setup_ns:
            self.clock.at(now + setup_ns, partial(self._begin, flow))
        else:
            self._begin(flow)
        return flow

    def setup_ns(self, route: tuple[int, ...], descriptors: int) -> int:
        """Return the time before the bytes of a transfer flow, in ns.

        It is the largest latency of its links, and for each of its `descriptors` (contiguous pieces of memory) the
        largest cost of one.
        """
        waits = self._waits.get(route)
        if waits is None:
            crossed = [self.links[link] for link in route]
            waits = max(link.latency_ns for link in crossed), max(link.descriptor_ns for link in crossed)
            self._waits[route] = waits
        return waits[0] + descriptors * waits[1]

    def abort(self, flow: Flow) -> int:
        """End a flow now if it has not ended, without a call of its `done`; return its whole bytes that have flowed."""
        flow.aborted = True
        if flow.ended_ns < 0:
            flow.ended_ns = self.clock._now
            if flow.stream is not None:
                self._end(flow)
                self._reshare(flow.route)
        return (flow.size_bytes * BYTE - flow.left) // BYTE

    def uncap(self, flow: Flow) -> None:
        """Remove the cap of a flow from now on."""
        flow.cap = None
        if flow.stream is None or flow.stream.cap is None:
            return
        if self.in_turn:  # the stream has only this flow, and keeps its position
            flow.stream.cap = None
        else:
            self._leave(flow)
            self._join(flow)
        self._reshare(flow.route)

    def carried_bytes(self, link: int) -> int:
        """Return the whole bytes that a link has carried by now."""
        for stream in self._on[link].values():
            self._settle(stream)
        return self._carried[link] // BYTE

    def check(self) -> None:
        """Raise AssertionError if a link exceeds its capacity, or has not carried the units that its flows got."""
        for link, streams in enumerate(self._on):
            rate = sum(stream.rate * stream.flows for stream in streams.values())
            if rate > self._capacities[link]:
                raise AssertionError(f"{self.links[link].name}: flows have {rate}, the link {self._capacities[link]}")
            moved = self._counted[link]
            for stream in streams.values():
                self._settle(stream)
                flows = [flow for _, _, flow in stream.queue if flow.stream is stream]
                moved += sum(flow.size_bytes * BYTE - flow.target + stream.given for flow in flows)
            if moved != self._carried[link]:
                raise AssertionError(f"{self.links[link].name}: flows got {moved}, the link gave {self._carried[link]}")

    def _begin(self, flow: Flow, _: Event | None = None) -> None:
        if flow.ended_ns < 0:  # not aborted while it was set up
            flow.began_ns = self.clock._now
            self._join(flow)
            self._reshare(flow.route)

    def _join(self, flow: Flow) -> None:
        """Add a flow to its stream; with `fifo` each flow has a stream of its own."""
        key = (flow.route, flow.cap, flow.number if self.in_turn else 0)
        stream = self._streams.get(key)
        if stream is None:
            cap = None if flow.cap is None else flow.cap << SCALE
            stream = Stream(flow.route, cap, 0, key, self._number(), since_ns=self.clock._now)
            self._streams[key] = stream
            for link in flow.route:
                self._on[link][stream.number] = stream
        self._settle(stream)
        stream.flows += 1
        stream.end_ns = math.inf
        flow.stream, flow.target = stream, stream.given + flow.left
        heapq.heappush(stream.queue, (flow.target, flow.number, flow))

    def _leave(self, flow: Flow) -> None:
        """Remove a flow from its stream; its entry in the stream's queue is removed later."""
        stream = flow.stream
        assert stream is not None
        self._settle(stream)
        flow.stream, flow.left = None, flow.target - stream.given
        if flow.left <= CRUMB:  # it is complete, since its end is rounded up to a nanosecond
            for link in flow.route:
                self._carried[link] += flow.left
            flow.left = 0
        stream.flows -= 1
        stream.end_ns = math.inf
        if not stream.flows:
            del self._streams[stream.key]
            for link in stream.route:
                del self._on[link][stream.number]

    def _end(self, flow: Flow) -> None:
        flow.ended_ns = self.clock._now
        self._leave(flow)
        for link in flow.route:
            self._counted[link] += flow.size_bytes * BYTE - flow.left

    def _settle(self, stream: Stream) -> None:
        """Update the units of a stream's flows and links to the present time."""
        now = self.clock._now
        if stream.since_ns == now:
            return
        given = stream.rate * (now - stream.since_ns)
        stream.since_ns = now
        if given:
            stream.given += given
            for link in stream.route:
                self._carried[link] += given * stream.flows

    def _reshare(self, links: Sequence[int]) -> None:
        """Update the rates and ends of all streams that are connected to `links`."""
        streams = self._joined(links)
        if not streams:
            self._await()
            return
        for stream, rate in zip(streams, self._rates(streams, self._capacities), strict=True):
            if rate != stream.rate:
                self._settle(stream)
                stream.rate = rate
            elif stream.end_ns != math.inf:
                continue
            end_ns = first_end(stream)
            if end_ns != stream.end_ns:
                stream.end_ns = end_ns
                heapq.heappush(self._ends, (end_ns, self._number(), stream))
        self._await()

    def _joined(self, links: Sequence[int]) -> list[Stream]:
        """Return the streams on `links`, those that share a link with them, and so on, in the order of their start."""
        near = [stream for link in links for stream in self._on[link].values()]
        if not near:
            return near
        if len(near) == len(near[0].route) and all(stream is near[0] for stream in near):  # the only stream
            return near[:1]
        todo, reached = [*links], {*links}
        found: dict[int, Stream] = {}
        for link in todo:  # the loop appends to `todo`
            for number, stream in self._on[link].items():
                if number not in found:
                    found[number] = stream
                    for other in stream.route:
                        if other not in reached:
                            reached.add(other)
                            todo.append(other)
        return [found[number] for number in sorted(found)]

    def _await(self) -> None:
        """Schedule an event at the first end if none is pending before it; an early event is harmless."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].end_ns:
            heapq.heappop(ends)
        if len(ends) > 64 + 4 * len(self._streams):  # many stale entries
            ends[:] = [entry for entry in ends if entry[0] == entry[2].end_ns]
            heapq.heapify(ends)
        if ends and ends[0][0] < self._due_ns:
            self._due_ns = ends[0][0]
            self.clock.at(int(self._due_ns), self._wake)

    def _wake(self, _: Event) -> None:
        """End all flows that are complete now, then call their `done`, in the order in which the flows were sent."""
        if self.clock._now != self._due_ns:
            return
        self._due_ns = math.inf
        over: list[Flow] = []
        while self._ends and self._ends[0][0] <= self.clock._now:
            end_ns, _number, stream = heapq.heappop(self._ends)
            if end_ns == stream.end_ns:
                over += self._complete(stream)
        self._reshare([link for flow in over for link in flow.route])
        for flow in sorted(over, key=lambda flow: flow.number):
            if not flow.aborted:  # by the `done` of an earlier one
                flow.done()

    def _complete(self, stream: Stream) -> list[Flow]:
        """End the complete flows of a stream and return them."""
        self._settle(stream)
        over = []
        while stream.queue and stream.queue[0][0] - stream.given <= CRUMB:
            flow = heapq.heappop(stream.queue)[2]
            if flow.stream is stream:
                self._end(flow)
                over.append(flow)
        return over

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
