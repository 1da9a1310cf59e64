"""Streams: flows over the same links with the same cap, which have the same rate.

One number counts the units that each flow of a stream has got since its start, and a flow ends when this number has
grown by its size. A change takes time for the streams connected to it by links, however many flows they have.

A flow may be added after its beginning, if nothing else has changed since then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from operator import attrgetter

from simulator.engine.transfers.flows import BYTE, CRUMB, SCALE, Flow, Stream, first_end
from simulator.network import SHARING, Link


class Streams:
    """Streams that share links by the rule `sharing`. Link i is `links[i]`."""

    def __init__(self, links: Sequence[Link], sharing: str) -> None:
        self.capacities = [link.bytes_per_s << SCALE for link in links]
        self.carried = [0] * len(links)  # units that each link has carried, by rates and time
        self._links, self._rates, self._in_turn = links, SHARING[sharing], sharing == "fifo"
        self._counted = [0] * len(links)  # units of ended flows
        self.active: dict[tuple[object, ...], Stream] = {}
        self._on: list[dict[int, Stream]] = [{} for _ in links]  # streams of each link, by number
        self._ends: list[tuple[float, int, Stream]] = []  # a heap; an entry with another end than its stream is stale
        self._numbers = 0

    def begin(self, flow: Flow) -> None:
        """Add a flow that has been set up, from its beginning on."""
        flow.began_ns, flow.left = flow.begins_ns, flow.size_bytes * BYTE
        self._join(flow, flow.begins_ns)
        self._reshare(flow.route, flow.begins_ns)

    def end(self, flow: Flow, now: int) -> None:
        """End a flow now, whether it is complete or not."""
        flow.ended_ns = now
        if flow.stream is not None:
            self._leave(flow, now)
            self._count(flow)
            self._reshare(flow.route, now)

    def uncap(self, flow: Flow, now: int) -> None:
        """Remove the cap of a flow from the rate of its stream, or move the flow to the stream without a cap."""
        stream = flow.stream
        if stream is None or stream.cap is None:
            return
        if self._in_turn:  # the stream has only this flow, and keeps its position
            stream.cap = None
        else:
            self._leave(flow, now)
            self._join(flow, now)
        self._reshare(flow.route, now)

    def first_end(self) -> float:
        """Return the end of the first flow at the present rates, in ns; infinity without flows."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].end_ns:
            heapq.heappop(ends)
        if len(ends) > 64 + 4 * len(self.active):  # many stale entries
            ends[:] = [entry for entry in ends if entry[0] == entry[2].end_ns]
            heapq.heapify(ends)
        return ends[0][0] if ends else math.inf

    def complete(self, now: int) -> list[Flow]:
        """End all flows that are complete by now; return them in the order in which they were sent."""
        over = []
        while self._ends and self._ends[0][0] <= now:
            end_ns, _, stream = heapq.heappop(self._ends)
            if end_ns == stream.end_ns:
                over += self._complete(stream, now)
        if self.active:
            self._reshare([link for flow in over for link in flow.route], now)
        return sorted(over, key=attrgetter("number")) if len(over) > 1 else over

    def _complete(self, stream: Stream, now: int) -> list[Flow]:
        self._settle(stream, now)
        over = []
        while stream.queue and stream.queue[0][0] - stream.given <= CRUMB:
            flow = heapq.heappop(stream.queue)[2]
            if flow.stream is stream:
                flow.ended_ns = now
                self._leave(flow, now)
                self._count(flow)
                over.append(flow)
        return over

    def _join(self, flow: Flow, now: int) -> None:
        """Add a flow to its stream; with `fifo` each flow has a stream of its own."""
        key = (flow.route, flow.cap, flow.number if self._in_turn else 0)
        stream = self.active.get(key)
        if stream is None:
            cap = None if flow.cap is None else flow.cap << SCALE
            stream = Stream(flow.route, cap, 0, key, self._number(), since_ns=now)
            self.active[key] = stream
            for link in flow.route:
                self._on[link][stream.number] = stream
        self._settle(stream, now)
        stream.flows += 1
        stream.end_ns = math.inf
        flow.stream, flow.target = stream, stream.given + flow.left
        heapq.heappush(stream.queue, (flow.target, flow.number, flow))

    def _leave(self, flow: Flow, now: int) -> None:
        """Remove a flow from its stream; its entry in the stream's queue is removed later."""
        stream = flow.stream
        assert stream is not None
        self._settle(stream, now)
        flow.stream, flow.left = None, flow.target - stream.given
        if flow.left <= CRUMB:  # it is complete, since its end is rounded up to a nanosecond
            for link in flow.route:
                self.carried[link] += flow.left
            flow.left = 0
        stream.flows -= 1
        stream.end_ns = math.inf
        if not stream.flows:
            del self.active[stream.key]
            for link in stream.route:
                del self._on[link][stream.number]

    def _count(self, flow: Flow) -> None:
        """Count the units of an ended flow."""
        for link in flow.route:
            self._counted[link] += flow.size_bytes * BYTE - flow.left

    def _settle(self, stream: Stream, now: int) -> None:
        """Update the units of a stream's flows and links to the time `now`."""
        if stream.since_ns == now:
            return
        given = stream.rate * (now - stream.since_ns)
        stream.since_ns = now
        if given:
            stream.given += given
            for link in stream.route:
                self.carried[link] += given * stream.flows

    def _reshare(self, links: Sequence[int], now: int) -> None:
        """Update the rates and ends of all streams that are connected to `links`."""
        streams = self._joined(links)
        for stream, rate in zip(streams, self._rates(streams, self.capacities), strict=True):
            if rate != stream.rate:
                self._settle(stream, now)
                stream.rate = rate
            elif stream.end_ns != math.inf:
                continue
            end_ns = first_end(stream)
            if end_ns != stream.end_ns:
                stream.end_ns = end_ns
                heapq.heappush(self._ends, (end_ns, self._number(), stream))

    def _joined(self, links: Sequence[int]) -> list[Stream]:
        """Return the streams on `links`, those that share a link with them, and so on, in the order of their start."""
        if len(self.active) == 1:
            (only,) = self.active.values()
            return [only] if links == only.route or not set(links).isdisjoint(only.route) else []
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

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def settle(self, link: int, now: int) -> None:
        """Update the units that a link has carried to the time `now`."""
        for stream in self._on[link].values():
            self._settle(stream, now)

    def check(self, now: int) -> None:
        """Raise AssertionError if a link exceeds its capacity, or has not carried the units that its flows got."""
        for link, streams in enumerate(self._on):
            rate = sum(stream.rate * stream.flows for stream in streams.values())
            if rate > self.capacities[link]:
                raise AssertionError(f"{self._links[link].name}: flows have {rate}, the link {self.capacities[link]}")
            self.settle(link, now)
            moved = self._counted[link]
            for stream in streams.values():
                flows = [flow for _, _, flow in stream.queue if flow.stream is stream]
                moved += sum(flow.size_bytes * BYTE - flow.target + stream.given for flow in flows)
            if moved != self.carried[link]:
                raise AssertionError(f"{self._links[link].name}: flows got {moved}, the link gave {self.carried[link]}")
