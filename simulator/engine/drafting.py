"""Speculative decoding while a replica runs: how many drafts its sequences get, and how many of them hold."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from cost_models.shape import BatchShape, CostModel
from simulator.engine.exact import ExactBatch
from simulator.results.record import Ints
from simulator.scenario.speculation import Proposer
from simulator.scheduling import TrackedSequence
from simulator.speculation import AcceptanceLaw, build_length
from simulator.speculation.acceptance import NOTHING
from simulator.speculation.length import StepTime


class Drafting:
    """Draws what becomes of drafts, and counts it; see `exact.Speculator`.

    A tree's drafts are numbered level by level, so that one that is cut short for want of budget loses its deepest.
    """

    def __init__(self, proposer: Proposer, law: AcceptanceLaw, cost: CostModel, batch: ExactBatch) -> None:
        levels = proposer.levels
        self._law = law
        self._rule = build_length(proposer, _step_time(cost, batch))
        self._levels = levels
        upto = list(accumulate(levels))
        self._depth_of = [sum(each <= drafts for each in upto) for drafts in range(upto[-1] + 1)]
        self._length = 0
        self._drafted = [0] * (upto[-1] + 1)  # by number of drafts: how often a sequence had so many to verify
        self._held = [0] * (len(levels) + 1)  # by number of accepted drafts

    def length(self, running: int) -> tuple[int, int]:
        """See `exact.Speculator`."""
        drafts = self._length = self._rule.length(running)
        return drafts, self._depth_of[drafts]

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """See `exact.Speculator`."""
        if not self._length:
            return 0
        if seq.run is None:  # else what was proposed last was not scheduled
            self._peek(seq)
        return 0 if seq.run is None else self._length

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """See `exact.Speculator`."""
        run = seq.run
        if run is None:
            run = self._peek(seq)
        seq.run = None
        depth = self._depth_of[drafts]
        if run == NOTHING:  # placeholders that nothing was found for
            run = 0
        elif run > depth:
            run = depth
        self._drafted[drafts] += 1
        self._held[run] += 1
        self._rule.observe(depth, run)
        return run

    def _peek(self, seq: TrackedSequence) -> int:
        """The run of the next verification; one of nothing to propose is used up when that is noticed."""
        if seq.runs is None:
            seq.runs = self._law.runs(seq.index)
        run: int = next(seq.runs)
        seq.run = None if run == NOTHING else run
        return run

    def by_depth(self) -> Ints:
        """(3, depths): sequences, drafts and accepted by depth; see `DraftPositions`."""
        depths = len(self._levels)
        sequences, drafts = np.zeros(depths, np.int64), np.zeros(depths, np.int64)
        for count, times in enumerate(self._drafted):
            left = count
            for depth, level in enumerate(self._levels):
                drafts[depth] += min(left, level) * times
                sequences[depth] += times if left >= level else 0
                left = max(left - level, 0)
        accepted = np.array([sum(self._held[depth + 1 :]) for depth in range(depths)], np.int64)
        return np.stack([sequences, drafts, accepted])


def _step_time(cost: CostModel, batch: ExactBatch) -> StepTime:
    """What steps of a replica take with so many running sequences of the usual length, and so many drafts of each."""

    def step_time(running: int, drafts: int) -> float:
        keys = batch.known_tokens // max(batch.unfinished, 1) + 1
        window = running * min(keys, cost.window) if cost.window else 0
        shape = BatchShape(
            running, running * (keys + drafts), window, (), 0, running, draft_tokens=running * drafts, proposed=drafts
        )
        device_ns, host_ns, _ = cost.step_cost(shape)
        return max(device_ns, host_ns) if batch.depth == 2 else device_ns + host_ns

    return step_time
