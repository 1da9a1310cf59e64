"""A `Stage` that runs by itself: requests end when they have all of their output, and go where their policy puts them
when they are preempted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.scenario.schedulers import Scheduler
from simulator.scheduling import ContentSequence, Plan, SequenceState, limits
from tests.unit.scheduling.stage import Stage


class Bench(Stage):
    """Synchronous, and without totals."""

    def __init__(self, scheduler: Scheduler, blocks: int, block_size: int = 16) -> None:
        super().__init__(scheduler, blocks, totals=False, block_size=block_size)
        self.decode_steps = 0
        self._to_the_back = limits(scheduler).requeue == "back"

    def request(self, prompt: int, max_tokens: int = 100, shared: Sequence[int] = ()) -> SequenceState:
        """Return a new request, at the end of the queue."""
        seq = ContentSequence(self.count, prompt, max_tokens, shared)
        self.count += 1
        self.waiting.append(seq)
        return seq

    def step(self) -> dict[int, int]:
        scheduled = super().step()
        for seq in self.plan.preempted if self._to_the_back else ():
            self.waiting.remove(seq)
            self.waiting.append(seq)
        if scheduled and not self.plan.paused:
            self.decode_steps += 1
        self.end(*[seq for seq in self.list if seq.target - seq.prompt_tokens == seq.max_tokens])
        return scheduled

    def until(self, done: Callable[[Plan], object]) -> None:
        """Run steps up to the first one with the wanted plan."""
        for _ in range(1000):
            self.step()
            if done(self.plan):
                return
        raise AssertionError("1000 steps, and no such plan")
