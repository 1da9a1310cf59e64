"""Draws the decodes of many sequences with speculation at once: a few array operations for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from simulator.engine.batches.draft_course import (
    BLOCKS,
    COLUMNS,
    DRAFTS,
    KEYS,
    TOKENS,
    WINDOW,
    Course,
    CourseRules,
    Courses,
    Start,
)
from simulator.results.columns import Ints
from simulator.speculation import AcceptanceLaw
from simulator.speculation.runs import NOTHING, TOGETHER
from simulator.workload.requests import RequestTable

#: As many requests are drawn at once as have about so many tokens, at most `TOGETHER`.
_TOKENS = 1 << 15
#: Groups of decodes kept until their requests start to decode.
_KEPT = 16


class CourseMaker:
    """Draws the decodes of a pool's requests.

    Requests start to decode about in their order. So the decodes of successive ones are drawn together, from the state
    in which a sequence usually starts. A sequence in another state, as after a preemption, is drawn by itself.
    """

    def __init__(self, law: AcceptanceLaw, rules: CourseRules, table: RequestTable) -> None:
        self._law, self._rules, self._table = law, rules, table
        self._together = TOGETHER
        while self._together > 1 and self._together * table.output_tokens.mean() > _TOKENS:
            self._together //= 2
        self.drafts = rules.speculation.k
        self._groups: dict[int, Courses] = {}
        self._next = 0  # all groups before this one have been drawn, or never will be

    def course(self, index: int, first: int, start: Start) -> Course:
        """Return the decode of request `index` from step `first` on."""
        number, at = divmod(index, self._together)
        if number >= self._next:
            self._draw_group(number, start, start.base - int(self._table.prompt_tokens[index]))
        group = self._groups.get(number)
        if group is None or group.starts[at] != start:
            group, at = self._draw([index], [start]), 0
        return Course(group, at, first, self._rules.asynchronous)

    def _draw_group(self, number: int, usual: Start, beyond: int) -> None:
        """Draw the decodes of a group of requests, which start as `usual` does, `beyond` tokens after their prompts;
        forget the oldest group if there are too many."""
        first, rules, table = number * self._together, self._rules, self._table
        some = slice(first, first + self._together)
        prompts = table.prompt_tokens[some].astype(np.int64)
        base = prompts + beyond
        known = np.minimum(base + usual.lead * rules.speculation.lookahead, rules.max_model_len)
        columns = (
            repeat(usual.lead),
            repeat(0),
            base.tolist(),
            repeat(0),
            np.minimum(table.output_tokens[some] - 1 - beyond, rules.max_model_len).tolist(),
            (-(-known // rules.block_size)).tolist(),
            (prompts + table.max_tokens[some]).tolist(),
        )
        starts = list(map(Start._make, zip(*columns, strict=False)))
        self._groups[number] = self._draw(range(first, first + len(starts)), starts)
        self._next = number + 1
        if len(self._groups) > _KEPT:
            del self._groups[next(iter(self._groups))]

    def _draw(self, requests: Sequence[int], starts: list[Start]) -> Courses:
        """Draw the decodes of some requests, which start in these states, all with the same `lead`."""
        rules, lead = self._rules, starts[0].lead
        _, _, base, ahead, left, held, limit = np.array(starts, np.int64).T
        runs, token_steps = self._runs(requests, starts[0].draws, left, lead)
        accepted = np.maximum(runs, 0)
        upto, ends = (accepted + 1).cumsum(dtype=np.int64), token_steps.cumsum()
        upto -= np.repeat(np.append(0, upto)[ends - token_steps], token_steps)
        steps = token_steps
        if rules.asynchronous:
            steps = token_steps + ~_foresees_end(base, limit, upto, token_steps)
        at = (steps + 1).cumsum() - steps - 1
        entries = int(at[-1] + steps[-1] + 1)
        drawn = np.repeat(at - ends + token_steps, token_steps) + np.arange(len(runs))  # the entry of each draw
        got = np.zeros(entries, np.int64)
        got[at] = base
        got[drawn + 1] = upto + np.repeat(base, token_steps)
        table = np.zeros((entries, COLUMNS), np.int64)
        drafts, tokens, own_runs = table[:, DRAFTS], table[:, TOKENS], np.zeros(entries, np.int16)
        own_runs[drawn], tokens[drawn] = runs, accepted + 1
        brought = token_steps > 0
        tokens[(at + token_steps - 1)[brought]] -= upto[ends[brought] - 1] - left[brought]
        drafts.fill(rules.speculation.k)
        if rules.asynchronous:
            drafts[at] *= lead
        else:
            drafts[drawn[runs == NOTHING]] = 0
        computed = self._ahead(got, at, base + ahead, lead) if rules.asynchronous else got
        blocks = self._fill(table, computed, at, held)
        return Courses(
            starts,
            token_steps.tolist(),
            steps.tolist(),
            at.tolist(),
            table.ravel(),
            blocks,
            computed,
            got,
            own_runs,
            _as_bytes(drafts),
            _as_bytes(np.maximum(own_runs, 0)),
            _as_bytes(tokens),
        )

    def _runs(self, requests: Sequence[int], draws: int, left: Ints, lead: int) -> tuple[Ints, Ints]:
        """Return the runs of the requests' steps, one request after the other, and the number of steps of each."""
        if lead:
            return self._law.until(requests, draws, left)
        runs, steps = self._law.until(requests, draws, left - 1)  # for the first step nothing was proposed
        begins = (steps.cumsum() - steps)[left > 0]
        return np.insert(runs, begins, NOTHING), steps + (left > 0)

    def _fill(self, table: Ints, computed: Ints, at: Ints, held: Ints) -> Ints:
        """Fill in keys and newly allocated blocks; return the number of blocks held in each step, from `held` on."""
        rules = self._rules
        keys = table[:, KEYS] = computed + table[:, DRAFTS] + 1
        if rules.window:
            table[:, WINDOW] = np.minimum(keys, rules.window)
        blocks: Ints = np.minimum(keys + rules.speculation.lookahead, rules.max_model_len) + rules.block_size - 1
        blocks //= rules.block_size
        if self._law.gaps or (blocks[at] < held).any():  # blocks allocated for more drafts are kept
            blocks[at] = np.maximum(blocks[at], held)
            apart = np.zeros_like(blocks)
            apart[at] = blocks.max() + 1
            apart.cumsum(out=apart)
            blocks = np.maximum.accumulate(blocks + apart) - apart
        asked = table[:, BLOCKS]
        np.subtract(blocks[1:], blocks[:-1], out=asked[1:])
        asked[at] = blocks[at] - held
        return blocks

    def _ahead(self, got: Ints, at: Ints, first: Ints, lead: int) -> Ints:
        """Return `computed` where each step is formed before the previous one has ended; `first` is that of the first
        step of each sequence."""
        k = self._rules.speculation.k
        computed = np.empty_like(got)
        np.add(got[:-1], 1 + k, out=computed[1:])
        if not lead:
            second = at + 1
            computed[second[second < len(computed)]] -= k
        computed[at] = first
        return computed


def _as_bytes(column: Ints) -> bytes:
    return column.astype(np.uint8).tobytes()


def _foresees_end(base: Ints, limit: Ints, upto: Ints, token_steps: Ints) -> NDArray[np.bool_]:
    """Return, by sequence, whether the scheduler knows, before it forms one step too many, that the last token is in
    flight.

    It must know this even if all drafts in flight are rejected. `base` tokens are computed at the start, `limit` is the
    most tokens of the sequence, `upto` the tokens after each step, and `token_steps` the numbers of steps.
    """
    sure, many = base.copy(), token_steps > 1
    sure[many] += upto[token_steps.cumsum()[many] - 2]
    foresees: NDArray[np.bool_] = sure + 1 + (token_steps > 0) >= limit  # without a step, it is the token of the prompt
    return foresees
