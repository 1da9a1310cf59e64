"""A batch as a list, for the tests of policies that pause and reorder: it applies plans the way an engine does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

from simulator.memory import build_pool
from simulator.scheduling import ContentSequence, Plan, Sequence, build_policy, limits


class Bench:
    """Synchronous, without totals: a request ends when it has `max_tokens`."""

    decodes = None

    def __init__(self, scheduler: Any, blocks: int, block_size: int = 16) -> None:
        self.limits = limits(scheduler)
        self.pool = build_pool(self.limits, blocks, block_size)
        self.policy: Any = build_policy(scheduler, blocks)
        self.waiting: deque[Sequence] = deque()
        self.list: list[Sequence] = []
        self.plan = Plan()
        self.decode_steps = 0
        self.count = 0

    def add(self, prompt: int, max_tokens: int = 100, shared: Seq[int] = ()) -> Sequence:
        seq = ContentSequence(self.count, prompt, max_tokens, shared)
        self.count += 1
        self.waiting.append(seq)
        return seq

    # --- the view

    @property
    def running(self) -> int:
        return len(self.list)

    @property
    def prefilling(self) -> list[Sequence]:
        return [seq for seq in self.list if not seq.decoding]

    @property
    def prefilling_last(self) -> bool:
        raise AssertionError("there are no totals")

    def decode_blocks(self) -> int:
        raise AssertionError("there are no totals")

    def oldest_first(self) -> Iterator[Sequence]:
        return iter(self.list)

    # --- a step

    def step(self) -> dict[int, int]:
        """Form and complete a step; the tokens that each request computes in it."""
        self.plan = plan = self.policy.schedule(self, self.pool)
        for seq in plan.preempted:
            self.list.remove(seq)
            seq.computed, seq.decoding, seq.preemptions = 0, False, seq.preemptions + 1
            if self.limits.requeue == "back":
                self.waiting.append(seq)
            else:
                self.waiting.appendleft(seq)
        for seq in plan.admitted:
            self.waiting.remove(seq)
            self.list.append(seq)
            seq.computed = seq.cached
        still = self.list if plan.paused else plan.held
        scheduled = {seq.index: 1 for seq in self.list if seq.decoding and seq not in still}
        scheduled |= {seq.index: tokens for seq, tokens in plan.chunks}
        if scheduled and not plan.paused:
            self.decode_steps += 1
        for seq in self.list.copy():
            seq.computed += scheduled.get(seq.index, 0)
            if seq.index in scheduled and seq.computed == seq.target:
                self._token(seq)
        self.pool.check(self.list)
        return scheduled

    def until(self, done: Callable[[Plan], object]) -> None:
        """Steps up to the first whose plan is the one looked for."""
        for _ in range(1000):
            self.step()
            if done(self.plan):
                return
        raise AssertionError("1000 steps, and no such plan")

    def _token(self, seq: Sequence) -> None:
        seq.decoding, seq.target = True, seq.target + 1
        if seq.target - seq.prompt_tokens == seq.max_tokens:
            self.list.remove(seq)
            self.pool.retire(seq)
