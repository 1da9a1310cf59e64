"""The simulated clock: SimPy's environment in integer nanoseconds, with two cheaper alternatives to its events."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import StopSimulation
from simpy.events import NORMAL, URGENT, Event

#: A time after all others, in ns.
_NEVER = (1 << 62) - 1


class Clock(simpy.Environment):
    """SimPy's environment; time is an int, in ns, from 0."""

    _now: int  # SimPy allows floats, too

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = self._queue  # (time in ns, priority, order, event) of each, as a heap
        self._target_ns = _NEVER  # the time until which `until` runs other calls and loops

    def at(self, time_ns: int, callback: Callable[[Event], Any]) -> None:
        """Call `callback` at `time_ns`, before the processes that wait for that instant.

        So the step that is formed at a step boundary includes an arrival at the same instant. A call takes half the
        time of a process that waits.
        """
        heappush(self._queue, (time_ns, URGENT, next(self._eid), _Call(callback)))

    def again(self, time_ns: int, call: Event) -> None:
        """Make a call of `at`, whose time has come, once more at `time_ns`."""
        heappush(self._queue, (time_ns, URGENT, next(self._eid), call))

    def next_event_ns(self) -> int:
        """Return the time of the next event, in ns; after all others if there is none."""
        due_ns: int = self.events[0][0] if self.events else _NEVER
        return self._target_ns if self._target_ns < due_ns else due_ns

    def loop(self, steps: Generator[None, Event, None]) -> Loop:
        """Return a loop that runs `steps` from now on."""
        loop = Loop(steps)
        self.at(self._now, lambda _: next(steps))
        return loop

    def wake(self, loop: Loop) -> None:
        """Continue an idle loop at the present instant, after all calls of `at` for it."""
        loop.idle = False
        heappush(self.events, (self._now, NORMAL, next(self._eid), loop))

    def until(self, time_ns: int, loop: Loop) -> bool:
        """Let the running `loop` wait until `time_ns`. If the result is False, it must yield; it is then continued.

        If only calls and other loops are due until then, they are run at once, and the result is True: the order is the
        same, and costs less. Loops that are run so always yield.
        """
        queue = self.events
        if self._target_ns != _NEVER:
            heappush(queue, (time_ns, NORMAL, next(self._eid), loop))
            return False
        if queue and queue[0][0] <= time_ns:
            end = (time_ns, NORMAL, next(self._eid))
            self._target_ns = time_ns
            while queue and queue[0] < end:
                call = queue[0][3]
                if not isinstance(call, _Call):
                    self._target_ns = _NEVER
                    heappush(queue, (*end, loop))
                    return False
                self._now = heappop(queue)[0]
                call.callback(call)
            self._target_ns = _NEVER
        self._now = time_ns
        return True

    def move(self, time_ns: int) -> None:
        """Move to `time_ns`, which is before the next event."""
        self._now = time_ns

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

    _ok = True
    _value = None

    def __init__(self, callback: Callable[[Event], Any]) -> None:
        self.callback = callback

    @property
    def callbacks(self) -> list[Callable[[Event], Any]]:
        return [self.callback]

    @callbacks.setter
    def callbacks(self, handled: list[Callable[[Event], Any]]) -> None:
        """Do nothing: SimPy removes the callbacks of an event that it has handled."""


class Loop(_Call):
    """A process that waits by `Clock.until` alone, which costs a quarter of waiting for SimPy's events.

    It is itself the event that continues it, in the queue once at most. Before it yields without a wait it sets `idle`,
    which `Clock.wake` ends.
    """

    __slots__ = ("idle",)

    def __init__(self, steps: Generator[None, Event, None]) -> None:
        super().__init__(steps.send)
        self.idle = False


class _Stop(Event):
    """The event that ends the run."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._ok, self._value = True, None
        self.callbacks.append(_stop)


def _stop(event: Event) -> None:
    raise StopSimulation(event)
