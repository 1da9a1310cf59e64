"""The life of requests in the service: from arrival to one end, whatever that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simulator.engine.admission import Admission
from simulator.engine.clock import Clock
from simulator.engine.logs.request_log import RequestLog
from simulator.results.columns import Refusal, Status

#: Members of an enumeration are slow to look up, and these are needed for every request.
_IN_FLIGHT, _COMPLETED = int(Status.IN_FLIGHT), int(Status.COMPLETED)

#: Called now and then with the time in ns and the number of requests that have ended.
Progress = Callable[[int, int], None]


class Holder(Protocol):
    """The part of the service that a request is in."""

    def withdraw(self, held: Any) -> None:
        """Give up what is held for a request, now or when the next step is formed, and then call
        `Lifecycle.withdrawn`; unless the request ends in another way before."""


class Lifecycle:
    """The one owner of a request's status: it begins requests, ends each of them once, and tells the source.

    `place(index)` starts a request that is admitted, and returns False if no engine core is open; `ended(index)` tells
    the source that a request has left the service. Both are set when the cluster and the source are built.
    """

    def __init__(self, clock: Clock, log: RequestLog, admission: Admission, progress: Progress | None) -> None:
        self.place: Callable[[int], bool] = lambda index: False
        self.ended: Callable[[int], None] = lambda index: None
        self._clock, self._log, self._admission, self._progress = clock, log, admission, progress
        self._held: dict[int, tuple[Holder, Any]] = {}  # by request in flight: the part that has it, and as what
        self._leaving: dict[int, Status] = {}  # by request that is being withdrawn: how it will have ended
        self._done = 0

    def begin(self, index: int) -> bool:
        """Take request `index` in, which arrives now; False if it is refused."""
        self._log.arrival_ns[index] = self._clock._now
        reason = self._admission.refusal(index)
        if not reason:
            self._log.status[index] = _IN_FLIGHT
            if self.place(index):
                return True
            reason = Refusal.NO_REPLICA
        self._log.status[index] = Status.REJECTED
        self._log.refusal[index] = reason
        self._count()
        return False

    def hold(self, index: int, holder: Holder, held: Any) -> None:
        """Note that `holder` has the request from now on, as `held`."""
        self._held[index] = holder, held

    def complete(self, indices: Sequence[int]) -> None:
        """End these requests with their last tokens. All have ended before the source hears of any."""
        status, held = self._log.status, self._held
        for index in indices:
            status[index] = _COMPLETED
            del held[index]
            self._count()
        if self._leaving:
            for index in indices:
                self._leaving.pop(index, None)
        for index in indices:
            self.ended(index)

    def withdraw(self, index: int, status: Status = Status.CANCELLED) -> bool:
        """End a request that is in flight before its last token; False if it is not in flight, or is withdrawn already.

        The request ends with `status` as soon as its holder has given it up.
        """
        if index not in self._held or index in self._leaving:
            return False
        self._leaving[index] = status
        holder, held = self._held[index]
        holder.withdraw(held)
        return True

    def withdrawn(self, index: int) -> None:
        """End a request that its holder has given up."""
        self._log.status[index] = self._leaving.pop(index)
        del self._held[index]
        self._count()
        self.ended(index)

    def _count(self) -> None:
        self._done += 1
        if self._progress is not None and not self._done % 64:
            self._progress(self._clock._now, self._done)
