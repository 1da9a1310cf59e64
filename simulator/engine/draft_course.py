"""The decode of one sequence with speculation, drawn to its end when it begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.engine.draft_counts import DraftCounts
from simulator.results.record import Ints
from simulator.scheduling import Sequence, Speculation
from simulator.speculation import AcceptanceLaw
from simulator.speculation.acceptance import NOTHING

#: The rows of a table by step: blocks that are asked for, keys attended to, drafts, tokens, keys within the window.
BLOCKS, KEYS, DRAFTS, TOKENS, WINDOW = range(5)


class Course(NamedTuple):
    """What the decode does in steps `first`, `first` + 1, ...

    `lead` is 1 if a token came before, from the step that computed the last of the prompt: drafts were proposed after
    it, for the first step. `draws` runs were used up by then, `before` blocks held, and `base` tokens computed.
    `brings` steps bring tokens; asynchronously there may be one more, formed before the last token was known.

    `table` (5, steps) has its rows of the batch's table, and `blocks` (steps,) the blocks that it holds in them.
    `computed` (steps + 1,) are the computed tokens when each is formed, as if all drafts under way would hold, and
    `sure` (steps + 1,) those whose tokens are delivered by then. `runs` and `accepted` (brings,) are what was drawn.
    """

    first: int
    lead: int
    draws: int
    before: int
    base: int
    brings: int
    table: Ints
    blocks: Ints
    computed: Ints
    sure: Ints
    runs: Ints
    accepted: Ints

    @property
    def last(self) -> int:
        """The step that brings the last token."""
        return self.first + self.brings - 1

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.first + len(self.blocks)

    def known(self, at: int) -> int:
        """The tokens that are known once its first `at` steps have ended."""
        return self.base + 1 + int(self.accepted[:at].sum()) + at

    def used(self, at: int, asynchronous: bool) -> int:
        """The runs that are used up if step `at` (from 0) is not taken.

        What was proposed for it synchronously is kept, unless it was nothing, which is used up when it is noticed.
        """
        proposed = at - (1 - self.lead) if at else 0
        noticed = not asynchronous and (self.lead or at) and self.runs[at] == NOTHING
        return self.draws + proposed + bool(noticed)


class CourseMaker:
    """Draws the decodes of a replica's sequences; of `counts` it takes the depth of what is proposed."""

    def __init__(
        self,
        law: AcceptanceLaw,
        counts: DraftCounts,
        speculation: Speculation,
        asynchronous: bool,
        block_size: int,
        window: int,
        max_model_len: int,
    ) -> None:
        self._law, self._depth = law, counts.depth
        self._drafts, self._lookahead = speculation.k, speculation.lookahead
        self._asynchronous = asynchronous
        self._block_size, self._window, self._max_model_len = block_size, window, max_model_len
        self._usual = 1 + counts.depth // 2  # tokens that a step brings, for a guess of how many runs are asked for

    def course(self, seq: Sequence, draws: int, first: int, base: int, left: int, lead: int) -> Course:
        """The decode of `seq` from step `first` on, with `base` tokens computed before it and `left` tokens to come;
        `draws` of its runs are used up."""
        runs, accepted, upto = self._runs(seq.index, draws, left, lead)
        brings = len(runs)
        got: Ints = np.zeros(brings + 2, np.int64)  # tokens before each step, and after the last
        got[1:-1] = upto
        got += base
        if self._asynchronous:
            steps = brings + (not _foresees_end(seq, got, brings))
            computed, sure = self._ahead(seq, got, left, steps, lead)
        else:
            steps, computed, sure = brings, got[:-1], got[:-1].copy()
            sure[-1] = got[max(brings - 1, 0)]  # of the last step nothing is delivered when it has been formed
        table = np.zeros((5, steps), np.int64)
        drafts, tokens = table[DRAFTS], table[TOKENS]
        drafts[:] = self._drafts
        if not self._asynchronous:
            drafts[runs == NOTHING] = 0
        elif not lead:
            drafts[:1] = 0
        if brings:
            np.add(accepted, 1, out=tokens[:brings])
            tokens[brings - 1] -= upto[-1] - left
        blocks = self._fill(table, computed, seq.blocks)
        return Course(first, lead, draws, seq.blocks, base, brings, table, blocks, computed, sure, runs, accepted)

    def _fill(self, table: Ints, computed: Ints, held: int) -> Ints:
        """Fill in what follows from the drafts: keys, and the blocks asked for beyond those `held`; return all that are
        held in each step."""
        keys = table[KEYS]
        np.add(computed[:-1], table[DRAFTS], out=keys)
        keys += 1
        if self._window:
            np.minimum(keys, self._window, out=table[WINDOW])
        rooms = np.minimum(keys + self._lookahead, self._max_model_len)
        rooms += self._block_size - 1
        blocks: Ints = np.maximum.accumulate(np.maximum(rooms // self._block_size, held))
        if len(blocks):
            table[BLOCKS, 0] = blocks[0] - held
            np.subtract(blocks[1:], blocks[:-1], out=table[BLOCKS, 1:])
        return blocks

    def _ahead(self, seq: Sequence, got: Ints, left: int, steps: int, lead: int) -> tuple[Ints, Ints]:
        """`computed` and `sure` of a course where each step is formed before the one before has ended."""
        computed, sure = np.zeros(steps + 1, np.int64), np.zeros(steps + 1, np.int64)
        computed[0] = got[0] + max(seq.computed - seq.target, 0)
        sure[1:] = np.minimum(got[:steps], got[0] + left)
        computed[1:] = got[:steps] + 1 + self._drafts
        if not lead:
            computed[1:2] -= self._drafts
        return computed, sure

    def _runs(self, index: int, draws: int, left: int, lead: int) -> tuple[Ints, Ints, Ints]:
        """The runs of a request's steps until it has got `left` tokens, what they accept, and how many tokens it has
        after each of them; no steps if `left` is 0."""
        count = min(left, left // self._usual + 8)
        while True:
            runs = self._law.some(index, draws, count)
            if not lead:  # nothing was proposed for the first
                runs = np.concatenate([[NOTHING], runs])
            accepted = np.minimum(np.maximum(runs, 0), self._depth)
            upto = (accepted + 1).cumsum()
            if count == left or upto[-1] >= left:
                steps = int(upto.searchsorted(left)) + 1 if left else 0
                return runs[:steps], accepted[:steps], upto[:steps]
            count = min(left, 2 * count)


def _foresees_end(seq: Sequence, got: Ints, brings: int) -> bool:
    """Is it known, when the step after the last one with tokens would be formed, that the last token is on its way even
    if all drafts fail? `got` are the tokens computed for sure before each step."""
    if not brings:  # the token under way is that of the prompt
        return int(got[0]) + 1 >= seq.prompt_tokens + seq.max_tokens
    return int(got[brings - 1]) + 2 >= seq.prompt_tokens + seq.max_tokens
