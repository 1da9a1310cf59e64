"""The simulated clock: SimPy's environment in integer nanoseconds, with two ways around the cost of its events."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, URGENT, Event

_NEVER = float("inf")


class Clock(simpy.Environment):
    """Time is an int, in ns, from 0."""

    _now: int  # SimPy allows floats, too

    def at(self, time_ns: int, callback: Callable[[Event], None]) -> None:
        """Call back at `time_ns`, before the processes that wait for that instant.

        An arrival at the very moment of a step boundary is so seen by the step that is formed then. A call costs
        half of a process that waits.
        """
        heappush(self._queue, (time_ns, URGENT, next(self._eid), _Call(self, callback)))

    def next_event_ns(self) -> float:
        """Return the time of the next event, in ns; infinity if there is none."""
        return self._queue[0][0] if self._queue else _NEVER

    def until(self, time_ns: int) -> Event | None:
        """Move to `time_ns` and return None, if until then there is nothing but calls, which are made on the way; else
        return the event of that time, for a process to wait for.

        Waiting for an event at once would come to the same, in the same order, and cost more.
        """
        queue, order = self._queue, -1
        while queue and queue[0][0] <= time_ns:
            if order < 0:
                order = next(self._eid)  # of our event among those of the same time
            due_ns, _, _, call = queue[0]
            if type(call) is not _Call:
                event = Event(self)
                event._ok, event._value = True, None
                heappush(queue, (time_ns, NORMAL, order, event))
                return event
            heappop(queue)
            self._now = due_ns  # type: ignore[assignment]
            call.callback(call)
        self._now = time_ns
        return None

    def stop_at(self, time_ns: int) -> None:
        """End `run` at `time_ns`, before anything that is due then."""
        self.schedule(_Stop(self), URGENT, time_ns - self._now)

    def stop(self) -> None:
        """End `run` at the present instant. Safe in a signal handler."""
        self.stop_at(self._now)

    def exhausted(self) -> bool:
        """Whether nothing but a stop would ever happen any more."""
        return all(type(event) is _Stop for _, _, _, event in self._queue)


class _Call(Event):
    """An event with one callback."""

    __slots__ = ("callback",)

    def __init__(self, clock: Clock, callback: Callable[[Event], None]) -> None:
        self.env = clock
        self.callback = callback
        self.callbacks = [callback]
        self._ok, self._value = True, None


class _Stop(Event):
    """The event that ends the run."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ok, self._value = True, None
        self.callbacks.append(_stop)


def _stop(event: Event) -> None:
    raise StopSimulation(event)
