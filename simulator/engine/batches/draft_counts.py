"""Counts of the drafts of an engine core by outcome."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from simulator.results.columns import Ints
from simulator.scenario.speculation import Proposer

#: Verifications are summed up when there are so many.
_AT_ONCE = 1 << 16


class DraftCounts:
    """Counts of verifications: `outcomes[drafts][accepted]` is the number of those with this outcome.

    Drafts of a tree are numbered level by level, so that a tree truncated by the token budget loses its deepest ones;
    `depth_of[n]` is the number of n drafts that could be accepted. None of an incomplete level counts as acceptable,
    since tables give no acceptance rates for fewer candidates.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.levels = proposer.levels
        upto = list(accumulate(self.levels))
        self.depth_of = [sum(each <= drafts for each in upto) for drafts in range(upto[-1] + 1)]
        self._drafts, self._accepted = bytearray(), bytearray()  # of verifications that are not yet summed up
        self.outcomes = [[0] * (self.depth + 1) for _ in self.depth_of]

    @property
    def depth(self) -> int:
        """Most drafts of a sequence that a step can accept."""
        return len(self.levels)

    def add(self, drafts: bytes, accepted: bytes) -> None:
        """Count verifications of so many drafts each, of which so many were accepted; those without drafts do not
        count."""
        self._drafts += drafts
        self._accepted += accepted
        if len(self._drafts) >= _AT_ONCE:
            self._sum()

    def _sum(self) -> None:
        """Sum up the verifications that were added."""
        width = self.depth + 1
        drafts, accepted = (
            np.frombuffer(column, np.uint8).astype(np.intp) for column in (self._drafts, self._accepted)
        )
        for outcome, times in enumerate(np.bincount(drafts * width + accepted).tolist()):
            if times and outcome >= width:
                self.outcomes[outcome // width][outcome % width] += times
        self._drafts, self._accepted = bytearray(), bytearray()

    def by_depth(self) -> Ints:
        """Return (4, depths): sequences, drafts, reached and accepted by depth, as in `DraftPositions`."""
        self._sum()
        outcomes = np.array(self.outcomes, np.int64)
        verified = outcomes.sum(axis=1)
        held = np.cumsum(outcomes[:, ::-1], axis=1)[:, ::-1]  # (drafts, depths + 1): at least so many accepted
        before = np.cumsum((0, *self.levels[:-1]))
        of_level = np.arange(len(outcomes))[:, None] - before  # (drafts, depths): those of a level, and deeper ones
        began = of_level > 0
        sequences = verified @ began
        drafts = verified @ np.clip(of_level, 0, self.levels)
        reached = (held[:, :-1] * began).sum(axis=0)
        return np.stack([sequences, drafts, reached, held[:, 1:].sum(axis=0)])
