"""Sources of requests: arrivals by the clock, a client-side limit, or clients that wait for their last request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from simpy.events import Event

from simulator.engine.clock import Clock
from simulator.engine.logs.request_log import RequestLog
from simulator.results.columns import Ints
from simulator.workload.requests import RequestTable

#: Sends request i to the service now; returns False if it is refused.
Send = Callable[[int], bool]


class Source(Protocol):
    """Sender of requests, which is notified of the end of each."""

    def ended(self, index: int) -> None:
        """Handle the end of request `index`, which has left the service."""


class OpenSource:
    """A source that sends each request at its arrival time, independent of earlier ones (open loop).

    With `requests` it sends only these, which are indices of the table in ascending order.
    """

    def __init__(
        self, clock: Clock, table: RequestTable, log: RequestLog, send: Send, requests: Ints | None = None
    ) -> None:
        self._clock, self._log, self._arrive = clock, log, send
        times = table.arrival_ns if requests is None else table.arrival_ns[requests]
        self._times = np.ascontiguousarray(times, np.int64).data
        self._requests = range(len(table)) if requests is None else requests.tolist()
        self._next = 0
        if self._requests:
            clock.at(self._times[0], self._due)

    def _due(self, call: Event) -> None:
        """Send all requests that are due now, and schedule the next arrival."""
        times, now, at, requests = self._times, self._clock._now, self._next, self._requests
        while at < len(requests) and times[at] <= now:
            index = requests[at]
            self._log.client_ns[index] = now
            self._arrive(index)
            at += 1
        self._next = at
        if at < len(requests):
            self._clock.again(times[at], call)

    def ended(self, index: int) -> None:
        pass


class GatedSource(OpenSource):
    """An open source with a client-side limit: with `limit` requests in flight, further ones wait in order."""

    def __init__(self, clock: Clock, table: RequestTable, log: RequestLog, send: Send, limit: int) -> None:
        self._free = limit
        self._held: deque[int] = deque()
        self._send = send
        super().__init__(clock, table, log, self._hold)

    def _hold(self, index: int) -> bool:
        """Hold a request until the limit lets it go; return True, since it is not refused yet."""
        self._held.append(index)
        self._release()
        return True

    def _release(self) -> None:
        while self._held and self._free:
            self._free -= 1
            if not self._send(self._held.popleft()):
                self._free += 1

    def ended(self, index: int) -> None:
        self._free += 1
        self._release()


class ClosedSource:
    """Clients that each send their next request `think_ns` after the last one ended (closed loop), in table order."""

    def __init__(self, clock: Clock, table: RequestTable, log: RequestLog, send: Send) -> None:
        assert table.closed_loop is not None
        self._clock, self._log, self._send = clock, log, send
        self._think_ns = np.ascontiguousarray(table.closed_loop.think_ns, np.int64).data
        self._count = len(table)
        self._next = 0
        self._idle = table.closed_loop.concurrency
        clock.at(0, self._start)

    def _start(self, _: Event) -> None:
        while self._idle and self._next < self._count:
            self._idle -= 1
            self.ended(-1)

    def ended(self, index: int) -> None:
        """Send the next request after its think time; if it is refused, continue with the one after it."""
        while self._next < self._count:
            following = self._next
            self._next = following + 1
            think_ns = self._think_ns[following] if index >= 0 else 0
            if think_ns:
                self._clock.at(self._clock._now + think_ns, partial(self._issue_later, following))
                return
            if self._issue(following):
                return
            index = following

    def _issue(self, index: int) -> bool:
        self._log.client_ns[index] = self._clock._now
        return self._send(index)

    def _issue_later(self, index: int, _: Event) -> None:
        if not self._issue(index):
            self.ended(index)


def build_source(
    clock: Clock, table: RequestTable, log: RequestLog, send: Send, requests: Ints | None = None
) -> Source:
    """Build the source for a table of requests; with `requests`, for these alone, of an open loop."""
    if table.closed_loop is not None:
        return ClosedSource(clock, table, log, send)
    if table.max_concurrency is not None:
        return GatedSource(clock, table, log, send, table.max_concurrency)
    return OpenSource(clock, table, log, send, requests)
