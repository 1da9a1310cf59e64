"""What became of the drafts of a replica, counted."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from simulator.results.record import Ints
from simulator.scenario.speculation import Proposer


class DraftCounts:
    """Counts verifications by how many drafts there were, and by how many of them were accepted.

    A tree's drafts are numbered level by level, so that one that is cut short for want of budget loses its deepest;
    `depth_of[n]` is how many of n drafts could be accepted.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.levels = proposer.levels
        upto = list(accumulate(self.levels))
        self.depth_of = [sum(each <= drafts for each in upto) for drafts in range(upto[-1] + 1)]
        self.verified = [0] * (upto[-1] + 1)  # by number of drafts: how often a sequence had so many to verify
        self.held = [0] * (len(self.levels) + 1)  # by number of accepted drafts

    @property
    def most(self) -> int:
        """Drafts of a sequence in a step."""
        return len(self.depth_of) - 1

    @property
    def depth(self) -> int:
        """Drafts that a step can accept."""
        return len(self.levels)

    def add(self, drafts: Ints, accepted: Ints) -> None:
        """Count many verifications at once, of so many drafts each, of which so many were accepted; those without any
        drafts are none."""
        for counts, values in ((self.verified, drafts), (self.held, accepted)):
            for value, times in enumerate(np.bincount(values).tolist()):
                counts[value] += times
        nothing = self.verified[0]
        self.held[0] -= nothing
        self.verified[0] = 0

    def by_depth(self) -> Ints:
        """(3, depths): sequences, drafts and accepted by depth; see `DraftPositions`."""
        sequences, drafts = np.zeros(self.depth, np.int64), np.zeros(self.depth, np.int64)
        for count, times in enumerate(self.verified):
            left = count
            for depth, level in enumerate(self.levels):
                drafts[depth] += min(left, level) * times
                sequences[depth] += times if left >= level else 0
                left = max(left - level, 0)
        accepted = np.array([sum(self.held[depth + 1 :]) for depth in range(self.depth)], np.int64)
        return np.stack([sequences, drafts, accepted])
