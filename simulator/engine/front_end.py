"""The server's front end, which processes a request before the scheduler of an engine core gets it."""

from __future__ import annotations

from collections import deque

from cost_models.specs.host import FrontEnd
from simulator.scheduling import SequenceState


class FrontEndQueue:
    """Requests that the front end processes, one after the other; the time of each grows with the running sequences.

    An engine core reads this queue when it forms a step, so that a request in it needs no event.
    """

    __slots__ = ("_request_ns", "_running_ns", "queue", "tokens", "withdrawals")

    def __init__(self, law: FrontEnd) -> None:
        self._request_ns, self._running_ns = law.request_ns, law.running_ns
        self.queue: deque[tuple[int, SequenceState]] = deque()  # (time at the scheduler in ns, request), in order
        self.tokens = 0  # total of the prompts
        self.withdrawals: list[SequenceState] = []  # requests for the scheduler to withdraw before its next step

    def put(self, seq: SequenceState, now_ns: int, running: int) -> bool:
        """Add a request; False, without a change, if the front end takes no time."""
        delay_ns = self._request_ns + self._running_ns * running
        if not delay_ns:
            return False
        ready_ns = now_ns + delay_ns
        if self.queue and self.queue[-1][0] > ready_ns:
            ready_ns = self.queue[-1][0]
        self.queue.append((ready_ns, seq))
        self.tokens += seq.prompt_tokens
        return True

    def remove(self, seq: SequenceState) -> bool:
        """Remove a withdrawn request; False if it is not in the queue."""
        for at, (_, each) in enumerate(self.queue):
            if each is seq:
                del self.queue[at]
                self.tokens -= seq.prompt_tokens
                return True
        return False
