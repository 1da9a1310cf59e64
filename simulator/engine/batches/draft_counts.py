"""Counts of the drafts of a replica by outcome."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from simulator.results.columns import Ints
from simulator.scenario.speculation import Proposer


class DraftCounts:
    """Counts verifications: `outcomes[drafts][accepted]` is how often, of so many drafts of a sequence, so many were
    accepted.

    A tree's drafts are numbered level by level, so that one that is cut short for want of budget loses its deepest;
    `depth_of[n]` is how many of n drafts could be accepted. Of a level that is cut, none can: how often one of fewer
    candidates is right, no table says.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.levels = proposer.levels
        upto = list(accumulate(self.levels))
        self.depth_of = [sum(each <= drafts for each in upto) for drafts in range(upto[-1] + 1)]
        self.outcomes = [[0] * (self.depth + 1) for _ in self.depth_of]

    @property
    def depth(self) -> int:
        """Drafts that a step can accept."""
        return len(self.levels)

    def add(self, drafts: Ints, accepted: Ints) -> None:
        """Count many verifications at once, of so many drafts each, of which so many were accepted; those without any
        drafts are none."""
        width = self.depth + 1
        for outcome, times in enumerate(np.bincount(drafts * width + accepted).tolist()):
            if times and outcome >= width:
                self.outcomes[outcome // width][outcome % width] += times

    def by_depth(self) -> Ints:
        """(4, depths): sequences, drafts, reached and accepted by depth; see `DraftPositions`."""
        outcomes = np.array(self.outcomes, np.int64)
        verified = outcomes.sum(axis=1)
        held = np.cumsum(outcomes[:, ::-1], axis=1)[:, ::-1]  # (drafts, depths + 1): so many accepted, or more
        before = np.cumsum((0, *self.levels[:-1]))
        of_level = np.arange(len(outcomes))[:, None] - before  # (drafts, depths): those of a level, and deeper ones
        began = of_level > 0
        sequences = verified @ began
        drafts = verified @ np.clip(of_level, 0, self.levels)
        reached = (held[:, :-1] * began).sum(axis=0)
        return np.stack([sequences, drafts, reached, held[:, 1:].sum(axis=0)])
