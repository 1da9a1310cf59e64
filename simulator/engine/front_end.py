"""The server's front end, through which a request reaches the scheduler of an engine core."""

from __future__ import annotations

from collections import deque

from cost_models.specs.host import FrontEnd
from simulator.scheduling import SequenceState


class FrontEndQueue:
    """Requests that the front end handles, one after the other, each the longer the more sequences run.

    An engine core looks here when it forms a step, so that a request on its way to the scheduler costs no event.
    """

    __slots__ = ("_law", "queue", "tokens", "withdrawals")

    def __init__(self, law: FrontEnd) -> None:
        self._law = law
        self.queue: deque[tuple[int, SequenceState]] = deque()  # (when the scheduler sees it in ns, request), in order
        self.tokens = 0  # of the prompts
        self.withdrawals: list[SequenceState] = []  # requests that the scheduler is to drop before its next step

    def put(self, seq: SequenceState, now_ns: int, running: int) -> bool:
        """Take a request in; False, and nothing is done, if it reaches the scheduler at once."""
        delay_ns = self._law.request_ns + self._law.running_ns * running
        if not delay_ns:
            return False
        ready_ns = now_ns + delay_ns
        if self.queue:
            ready_ns = max(ready_ns, self.queue[-1][0])
        self.queue.append((ready_ns, seq))
        self.tokens += seq.prompt_tokens
        return True

    def remove(self, seq: SequenceState) -> bool:
        """Remove a request that is given up; False if it is not here."""
        for at, (_, each) in enumerate(self.queue):
            if each is seq:
                del self.queue[at]
                self.tokens -= seq.prompt_tokens
                return True
        return False
