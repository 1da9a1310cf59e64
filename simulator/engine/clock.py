"""The simulated clock: SimPy's environment in integer nanoseconds, with two cheaper alternatives to its events."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, URGENT, Event

_NEVER = float("inf")


class Clock(simpy.Environment):
    """SimPy's environment; time is an int, in ns, from 0."""

    _now: int  # SimPy allows floats, too

    def at(self, time_ns: int, callback: Callable[[Event], None]) -> None:
        """Call `callback` at `time_ns`, before the processes that wait for that instant.

        So the step that is formed at a step boundary includes an arrival at the same instant. A call takes half the
        time of a process that waits.
        """
        heappush(self._queue, (time_ns, URGENT, next(self._eid), _Call(callback)))

    def next_event_ns(self) -> float:
        """Return the time of the next event, in ns; infinity if there is none."""
        return self._queue[0][0] if self._queue else _NEVER

    def until(self, time_ns: int) -> Event | None:
        """Advance to `time_ns` and return None if only calls by `at` are due until then; else return an event to wait
        for.

        The calls are made. The result and the order are the same as with an event in every case, but faster.
        """
        queue, order = self._queue, -1
        while queue and queue[0][0] <= time_ns:
            if order < 0:
                order = next(self._eid)  # order of this event among those of the same time
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
        """End `run` at `time_ns`, before all events of that time."""
        self.schedule(_Stop(self), URGENT, time_ns - self._now)

    def stop(self) -> None:
        """End `run` at the present time. May be called in a signal handler."""
        self.stop_at(self._now)

    def exhausted(self) -> bool:
        """Return whether no event is left, except stops."""
        return all(type(event) is _Stop for _, _, _, event in self._queue)


class _Call(Event):
    """An event with one callback."""

    __slots__ = ("callback",)

    _ok, _value = True, None

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self.callback = callback

    @property
    def callbacks(self) -> list[Callable[[Event], None]]:
        return [self.callback]

    @callbacks.setter
    def callbacks(self, handled: list[Callable[[Event], None]]) -> None:
        """Do nothing: SimPy removes the callbacks of an event that it has handled."""


class _Stop(Event):
    """The event that ends the run."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ok, self._value = True, None
        self.callbacks.append(_stop)


def _stop(event: Event) -> None:
    raise StopSimulation(event)
