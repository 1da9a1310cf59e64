"""A batch as a list, for tests of policies: no clock, no engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from simulator.memory import PoolLayout, build_pool
from simulator.scenario.schedulers import Scheduler
from simulator.scheduling import STEADY, Plan, PolicySetup, SequenceState, build_policy, limits


class Stage:
    """Keeps the running list and applies plans the way an engine does, with the totals that let a policy take its
    short cut, or without."""

    def __init__(self, scheduler: Scheduler, blocks: int, totals: bool, block_size: int = 16) -> None:
        self.pool = build_pool(limits(scheduler), PoolLayout(blocks, block_size))
        self.policy = build_policy(PolicySetup(scheduler, blocks))
        self.waiting: deque[SequenceState] = deque()
        self.list: list[SequenceState] = []
        self.kept: list[SequenceState] = []
        self.plan: Plan = STEADY
        self.totals = totals
        self.count = 0
        self.admissions = 0

    def add(self, *prompts: int, max_tokens: int = 100) -> list[SequenceState]:
        new = [SequenceState(self.count + i, prompt, max_tokens) for i, prompt in enumerate(prompts)]
        self.count += len(new)
        self.waiting.extend(new)
        return new

    def end(self, *sequences: SequenceState, kept: bool = False) -> None:
        """End sequences with their last token; their blocks are `kept` for a transfer, or freed."""
        for seq in sequences:
            self.list.remove(seq)
            self.kept.append(seq)
            if not kept:
                self.release(seq)

    def release(self, seq: SequenceState) -> None:
        """Take back the blocks of a sequence that has ended."""
        self.kept.remove(seq)
        self.pool.retire(seq)

    def reserve(self, seq: SequenceState, tokens: int) -> None:
        """Allocate the blocks of `tokens` tokens for a sequence whose KV is being transferred."""
        assert self.pool.grow(seq, tokens)
        self.kept.append(seq)

    def join(self, seq: SequenceState) -> None:
        """Let a sequence join whose KV has arrived."""
        self.kept.remove(seq)
        self.list.append(seq)
        self.admissions += 1
        seq.decoding = True

    # --- the view

    @property
    def running(self) -> int:
        return len(self.list)

    @property
    def prefilling(self) -> list[SequenceState]:
        return [seq for seq in self.list if not seq.decoding]

    @property
    def decodes(self) -> int | None:
        return sum(seq.decoding for seq in self.list) if self.totals else None

    @property
    def decode_tokens(self) -> int:
        return sum(seq.todo for seq in self.list if seq.decoding)

    @property
    def prefilling_last(self) -> bool:
        kinds = [seq.decoding for seq in self.list]
        return kinds == sorted(kinds, reverse=True)

    def decode_blocks(self) -> int:
        if self.pool.reserves:
            return 0
        return sum([self.pool.blocks_for(seq.computed + 1) - seq.blocks for seq in self.list if seq.decoding])

    def oldest_first(self) -> Iterator[SequenceState]:
        return iter(self.list)

    @property
    def outside(self) -> dict[int, SequenceState]:
        return {seq.index: seq for seq in self.kept}

    # --- a step

    def step(self) -> dict[int, int]:
        """Form and complete a step; the tokens that each request computes in it, in the order of the running list."""
        self.plan = plan = self.policy.schedule(self, self.pool)
        for seq in plan.preempted:
            self.list.remove(seq)
            seq.computed, seq.decoding, seq.preemptions = 0, False, seq.preemptions + 1
            self.waiting.appendleft(seq)
        for seq in plan.admitted:
            self.waiting.remove(seq)
            self.list.append(seq)
            self.admissions += 1
            seq.computed = seq.cached
        still = set() if not plan.paused else {seq.index for seq in self.list}
        still |= {seq.index for seq in plan.held}
        scheduled = {seq.index: 1 for seq in self.list if seq.decoding and seq.index not in still}
        scheduled |= {seq.index: tokens for seq, tokens in plan.chunks}
        for seq in self.list:
            seq.computed += scheduled.get(seq.index, 0)
            if seq.computed == seq.target:
                seq.decoding, seq.target = True, seq.target + 1
            if seq.decoding:  # with totals a policy may add up the decodes' blocks without naming their holders
                self.pool.settle(seq, seq.computed, seq.computed)
        self.pool.check([*self.list, *self.kept])
        return scheduled
