"""The lifecycle of requests in the service, from arrival to their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simulator.engine.admission import Admission
from simulator.engine.clock import Clock
from simulator.engine.logs.request_log import RequestLog
from simulator.results.columns import Refusal, Status

#: Constants, since members of an enumeration are slow to look up, and these are needed for every request.
_IN_FLIGHT, _COMPLETED = int(Status.IN_FLIGHT), int(Status.COMPLETED)

#: Called at intervals with the time in ns and the number of requests that have ended.
Progress = Callable[[int, int], None]


class Holder(Protocol):
    """The part of the service that holds a request."""

    def withdraw(self, held: Any) -> None:
        """Remove a request, now or when the next step is formed, and then call `Lifecycle.withdrawn`.

        It is not called if the request ends in another way before.
        """


class Lifecycle:
    """Owner of the status of requests, which begins them, ends each of them once, and notifies the source.

    `place(index)` starts an accepted request, and returns False if no engine core is open; `ended(index)` notifies the
    source that a request has left the service. Both are set when the cluster and the source are built.
    """

    def __init__(self, clock: Clock, log: RequestLog, admission: Admission, progress: Progress | None) -> None:
        self.place: Callable[[int], bool] = lambda index: False
        self.ended: Callable[[int], None] = lambda index: None
        self._clock, self._log, self._admission, self._progress = clock, log, admission, progress
        self._held: dict[int, tuple[Holder, Any]] = {}  # by request in flight: its holder, and the holder's object
        self._leaving: dict[int, Status] = {}  # by request that is being withdrawn: its status at the end
        self._done = 0

    def begin(self, index: int) -> bool:
        """Begin request `index`, which arrives now; False if it is refused."""
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
        """Set the holder of the request from now on, with its object `held`."""
        self._held[index] = holder, held

    def complete(self, indices: Sequence[int]) -> None:
        """End these requests, whose last tokens are delivered. The source is notified after all have ended."""
        status, held = self._log.status, self._held
        for index in indices:
            status[index] = _COMPLETED
            del held[index]
        self._count(len(indices))
        if self._leaving:
            for index in indices:
                self._leaving.pop(index, None)
        for index in indices:
            self.ended(index)

    def withdraw(self, index: int, status: Status = Status.CANCELLED) -> bool:
        """Withdraw a request before its last token; False if it is not in flight, or is being withdrawn already.

        The request ends with `status` as soon as its holder has removed it.
        """
        if index not in self._held or index in self._leaving:
            return False
        self._leaving[index] = status
        holder, held = self._held[index]
        holder.withdraw(held)
        return True

    def withdrawn(self, index: int) -> None:
        """End a request that its holder has removed."""
        self._log.status[index] = self._leaving.pop(index)
        del self._held[index]
        self._count()
        self.ended(index)

    def _count(self, ended: int = 1) -> None:
        before = self._done
        self._done = done = before + ended
        if self._progress is not None and done // 64 > before // 64:
            self._progress(self._clock._now, done)
