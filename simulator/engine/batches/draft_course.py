"""The decode of one sequence with speculation, of which all steps are drawn at its start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.engine.batches.draft_counts import DraftCounts
from simulator.results.columns import Ints
from simulator.scheduling import SequenceState, Speculation
from simulator.speculation import AcceptanceLaw
from simulator.speculation.runs import NOTHING

#: Rows of a table by step: allocated blocks, keys attended to, drafts, tokens, keys within the sliding window.
BLOCKS, KEYS, DRAFTS, TOKENS, WINDOW = range(5)


class Course(NamedTuple):
    """Work of a decode in steps `first`, `first` + 1, ...

    `lead` is 1 if the last chunk of the prompt produced a token: drafts were proposed after it, for the first step.
    Before the first step, `draws` runs had been used and `before` blocks were held. `brings` steps produce tokens; with
    asynchronous scheduling there may be one more, formed before the last token was known.

    `table` (5, steps) has its share in the batch's table, and `blocks` (steps,) the blocks that it holds. `computed`
    (steps + 1,) are the computed tokens when each step is formed, as if all drafts in flight were accepted; `got`
    (brings + 1,) those without rejected drafts, before each step that produces tokens and after the last; `final` is
    their number at the end. `runs` and `accepted` (brings,) are the draws, and the numbers of accepted drafts.
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
        """Number of the step that produces the last token."""
        return self.first + self.brings - 1

    @property
    def end(self) -> int:
        """Number of the step after the last one."""
        return self.first + len(self.blocks)

    def sure(self, at: int, asynchronous: bool) -> int:
        """Return the number of computed tokens whose next token is known when step `at` is formed."""
        if asynchronous:
            return min(int(self.got[at - 1]), self.final) if at else 0
        return int(self.got[min(at, max(self.brings - 1, 0))])

    def known(self, at: int) -> int:
        """Return the number of known tokens after its first `at` steps have ended."""
        return int(self.got[at]) + 1

    def used(self, at: int, asynchronous: bool) -> int:
        """Return the number of runs used before step `at` (from 0), if the sequence is preempted then.

        With synchronous scheduling, drafts already proposed for that step are kept; a run without drafts counts as
        used.
        """
        proposed = at - (1 - self.lead) if at else 0
        noticed = not asynchronous and (self.lead or at) and self.runs[at] == NOTHING
        return self.draws + proposed + bool(noticed)


class CourseRules(NamedTuple):
    """Settings of an engine core on which its decodes depend."""

    speculation: Speculation
    asynchronous: bool
    block_size: int
    window: int
    max_model_len: int


class Start(NamedTuple):
    """Start of a decode: `first`, `lead` and `draws` as in `Course`, and `base`, the tokens computed before it."""

    first: int
    lead: int
    draws: int
    base: int


class CourseMaker:
    """Factory of the courses of an engine core's sequences, with the depth of drafts in `counts`."""

    def __init__(self, law: AcceptanceLaw, counts: DraftCounts, rules: CourseRules) -> None:
        self._law, self._rules = law, rules
        self._drafts, self._asynchronous = rules.speculation.k, rules.asynchronous
        self._usual = 1 + counts.depth / 2  # moving average of the tokens of a step, to estimate the number of runs

    def course(self, seq: SequenceState, start: Start, left: int) -> Course:
        """Draw the decode of `seq` from `start` on, with `left` tokens to produce."""
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
        """Fill in keys and newly allocated blocks; return the number of blocks held in each step, from `held` on."""
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
        if blocks[0] < held or self._law.gaps:  # blocks allocated for more drafts are kept
            np.maximum.accumulate(np.maximum(blocks, held), out=blocks)
        asked[0] = blocks[0] - held
        np.subtract(blocks[1:], blocks[:-1], out=asked[1:])
        return blocks

    def _ahead(self, seq: SequenceState, got: Ints, steps: int, lead: int) -> Ints:
        """Return `computed` of a course in which each step is formed before the previous one has ended."""
        computed = np.empty(steps + 1, np.int64)
        computed[0] = got[0] + max(seq.computed - seq.target, 0)
        np.add(got[:steps], 1 + self._drafts, out=computed[1:])
        if not lead:
            computed[1:2] -= self._drafts
        return computed

    def _runs(self, index: int, draws: int, left: int, lead: int) -> tuple[Ints, Ints, Ints]:
        """Return the runs of the steps for `left` tokens, their accepted drafts, and total tokens; each (steps,)."""
        count = min(left, int(1.1 * left / self._usual) + 8)
        while True:
            runs = self._law.some(index, draws, count)
            if not lead:  # no drafts were proposed for the first step
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
    """Return whether the scheduler knows, before it forms one step too many, that the last token is in flight.

    It does if the step in flight produces the last token even with all drafts rejected. `got` as in `Course`.
    """
    if not brings:  # the token in flight is that of the prompt
        return int(got[0]) + 1 >= seq.prompt_tokens + seq.max_tokens
    return int(got[brings - 1]) + 2 >= seq.prompt_tokens + seq.max_tokens
