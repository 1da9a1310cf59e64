"""The simulated clock: SimPy's environment in integer nanoseconds, with two ways around the cost of its events."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.core import StopSimulation
from simpy.events import URGENT, Event

_NEVER = float("inf")


class Clock(simpy.Environment):
    """Time is an int, in ns, from 0."""

    _now: int  # SimPy allows floats, too

    def at(self, time_ns: int, callback: Callable[[Event], None]) -> None:
        """Call back at `time_ns`, before the processes that wait for that instant.

        An arrival at the very moment of a step boundary is so seen by the step that is formed then. A bare event costs
        half of a process that waits.
        """
        event = Event(self)
        event._ok, event._value, event.callbacks = True, None, [callback]
        self.schedule(event, URGENT, time_ns - self._now)

    def next_event_ns(self) -> float:
        """When the next event is due; infinity if none is."""
        return self._queue[0][0] if self._queue else _NEVER

    def advance(self, time_ns: int) -> bool:
        """Move to `time_ns` at once if nothing at all happens until then; False if something does.

        It is what waiting for an event of one's own would come to, without the event.
        """
        if self._queue and self._queue[0][0] <= time_ns:
            return False
        self._now = time_ns
        return True

    def stop_at(self, time_ns: int) -> None:
        """End `run` at `time_ns`, before anything that is due then."""
        self.at(time_ns, _stop)

    def stop(self) -> None:
        """End `run` at the present instant. Safe in a signal handler."""
        self.at(self._now, _stop)

    def exhausted(self) -> bool:
        """Whether nothing but a stop would ever happen any more."""
        return all(callback is _stop for _, _, _, event in self._queue for callback in event.callbacks or ())


def _stop(event: Event) -> None:
    raise StopSimulation(event)
