"""The decode of one sequence with speculation, drawn to its end when it begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.engine.batches.draft_counts import DraftCounts
from simulator.results.columns import Ints
from simulator.scheduling import SequenceState, Speculation
from simulator.speculation import AcceptanceLaw
from simulator.speculation.runs import NOTHING

#: The rows of a table by step: blocks that are asked for, keys attended to, drafts, tokens, keys within the window.
BLOCKS, KEYS, DRAFTS, TOKENS, WINDOW = range(5)


class Course(NamedTuple):
    """Work of a decode in steps `first`, `first` + 1, ...

    `lead` is 1 if a token came before, from the step that computed the last of the prompt: drafts were proposed after
    it, for the first step. `draws` runs were used up by then, and `before` blocks held. `brings` steps bring tokens;
    asynchronously there may be one more, formed before the last token was known.

    `table` (5, steps) has its rows of the batch's table, and `blocks` (steps,) the blocks that it holds in them.
    `computed` (steps + 1,) are the computed tokens when each is formed, as if all drafts under way would hold;
    `got` (brings + 1,) those that its tokens account for, before each step that brings some and after the last; `final`
    of them are computed in the end. `runs` and `accepted` (brings,) are what was drawn.
    """

    first: int
    lead: int
    draws: int
    before: int
    brings: int
    table: Ints
    blocks: Ints
    computed: Ints
    got: Ints
    final: int
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

    def sure(self, at: int, asynchronous: bool) -> int:
        """The computed tokens whose successors are known for sure when step `at` is formed."""
        if asynchronous:
            return min(int(self.got[at - 1]), self.final) if at else 0
        return int(self.got[min(at, max(self.brings - 1, 0))])

    def known(self, at: int) -> int:
        """The tokens that are known once its first `at` steps have ended."""
        return int(self.got[at]) + 1

    def used(self, at: int, asynchronous: bool) -> int:
        """The runs that are used up if step `at` (from 0) is not taken.

        What was proposed for it synchronously is kept, unless it was nothing, which is used up when it is noticed.
        """
        proposed = at - (1 - self.lead) if at else 0
        noticed = not asynchronous and (self.lead or at) and self.runs[at] == NOTHING
        return self.draws + proposed + bool(noticed)


class CourseRules(NamedTuple):
    """Settings that the decodes of an engine core depend on, beside the draws."""

    speculation: Speculation
    asynchronous: bool
    block_size: int
    window: int
    max_model_len: int


class Start(NamedTuple):
    """The beginning of a decode: its step `first`, `lead` and `draws` as in `Course`, and the `base` tokens computed
    before it."""

    first: int
    lead: int
    draws: int
    base: int


class CourseMaker:
    """Draws the decodes of a replica's sequences; of `counts` it takes the depth of what is proposed."""

    def __init__(self, law: AcceptanceLaw, counts: DraftCounts, rules: CourseRules) -> None:
        self._law, self._rules = law, rules
        self._drafts, self._asynchronous = rules.speculation.k, rules.asynchronous
        self._usual = 1 + counts.depth / 2  # tokens that a step brought lately: how many runs to ask for is a guess

    def course(self, seq: SequenceState, start: Start, left: int) -> Course:
        """Draw the decode of `seq` from `start` on, with `left` tokens to come."""
        first, lead, draws, base = start
        runs, accepted, upto = self._runs(seq.index, draws, left, lead)
        brings = len(runs)
        got: Ints = np.empty(brings + 1, np.int64)
        got[0] = base
        np.add(upto, base, out=got[1:])
        if self._asynchronous:
            steps = brings + (not _foresees_end(seq, got, brings))
            computed = self._ahead(seq, got, steps, lead)
        else:
            steps, computed = brings, got
        table = np.zeros((5, steps), np.int64)
        drafts, tokens = table[DRAFTS], table[TOKENS]
        drafts.fill(self._drafts)
        if self._asynchronous:
            drafts[: 1 - lead] = 0
        elif self._law.gaps or not lead:
            drafts[runs == NOTHING] = 0
        if brings:
            np.add(accepted, 1, out=tokens[:brings])
            tokens[brings - 1] -= upto[-1] - left
        blocks = self._fill(table, computed, seq.blocks)
        final = base + left
        return Course(first, lead, draws, seq.blocks, brings, table, blocks, computed, got, final, runs, accepted)

    def _fill(self, table: Ints, computed: Ints, held: int) -> Ints:
        """Fill in what follows from the drafts: keys, and the blocks asked for beyond those `held`; return all that are
        held in each step."""
        rules, lookahead = self._rules, self._rules.speculation.lookahead
        keys: Ints = table[KEYS]
        asked: Ints = table[BLOCKS]
        if not len(keys):
            return asked
        np.add(computed[:-1], table[DRAFTS], out=keys)
        keys += 1
        if rules.window:
            np.minimum(keys, rules.window, out=table[WINDOW])
        blocks: Ints = np.add(keys, lookahead + rules.block_size - 1)
        if keys[-1] + lookahead > rules.max_model_len:
            np.minimum(blocks, rules.max_model_len + rules.block_size - 1, out=blocks)
        blocks //= rules.block_size
        if blocks[0] < held or self._law.gaps:  # what was taken for more drafts is kept
            np.maximum.accumulate(np.maximum(blocks, held), out=blocks)
        asked[0] = blocks[0] - held
        np.subtract(blocks[1:], blocks[:-1], out=asked[1:])
        return blocks

    def _ahead(self, seq: SequenceState, got: Ints, steps: int, lead: int) -> Ints:
        """`computed` of a course where each step is formed before the one before has ended."""
        computed = np.empty(steps + 1, np.int64)
        computed[0] = got[0] + max(seq.computed - seq.target, 0)
        np.add(got[:steps], 1 + self._drafts, out=computed[1:])
        if not lead:
            computed[1:2] -= self._drafts
        return computed

    def _runs(self, index: int, draws: int, left: int, lead: int) -> tuple[Ints, Ints, Ints]:
        """The runs of a request's steps until it has got `left` tokens, what they accept, and how many tokens it has
        after each of them; no steps if `left` is 0."""
        count = min(left, int(1.1 * left / self._usual) + 8)
        while True:
            runs = self._law.some(index, draws, count)
            if not lead:  # nothing was proposed for the first
                runs = np.concatenate([[NOTHING], runs])
            accepted = np.maximum(runs, 0) if self._law.gaps or not lead else runs
            upto = (accepted + 1).cumsum()
            if count == left or upto[-1] >= left:
                break
            count = min(left, 2 * count)
        if not left:
            return runs[:0], runs[:0], runs[:0]
        steps = int(upto.searchsorted(left)) + 1
        self._usual += (left / steps - self._usual) / 32
        return runs[:steps], accepted[:steps], upto[:steps]


def _foresees_end(seq: SequenceState, got: Ints, brings: int) -> bool:
    """Is it known, when the step after the last one with tokens would be formed, that the last token is on its way even
    if all drafts fail? `got` are the tokens computed for sure before each step."""
    if not brings:  # the token under way is that of the prompt
        return int(got[0]) + 1 >= seq.prompt_tokens + seq.max_tokens
    return int(got[brings - 1]) + 2 >= seq.prompt_tokens + seq.max_tokens
