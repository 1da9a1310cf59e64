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
from simulator.speculation.runs import NOTHING
from simulator.workload.requests import RequestTable

#: The decodes of so many successive requests are drawn at once, fewer if they have more than so many tokens on average.
_TOGETHER, _TOKENS = 64, 1 << 15
#: Groups of decodes kept until their requests start to decode.
_KEPT = 16
_NONE = np.array([NOTHING], np.int16)


class CourseMaker:
    """Draws the decodes of a pool's requests; `depth` is that of the proposed drafts.

    Requests start to decode about in their order. So the decodes of successive ones are drawn together, from the state
    in which a sequence usually starts. A sequence in another state, as after a preemption, is drawn by itself.
    """

    def __init__(self, law: AcceptanceLaw, depth: int, rules: CourseRules, table: RequestTable) -> None:
        self._runs, self._rules, self._table, self._gaps = _Runs(law, depth), rules, table, law.gaps
        self._together = int(max(1, min(_TOGETHER, _TOKENS // max(table.output_tokens.mean(), 1))))
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
        starts = [Start(*row) for row in zip(*columns, strict=False)]
        self._groups[number] = self._draw(range(first, first + len(starts)), starts)
        self._next = number + 1
        if len(self._groups) > _KEPT:
            del self._groups[next(iter(self._groups))]

    def _draw(self, requests: Sequence[int], starts: list[Start]) -> Courses:
        """Draw the decodes of some requests, which start in these states, all with the same `lead`."""
        rules, lead = self._rules, starts[0].lead
        _, _, base, ahead, left, held, limit = np.array(starts, np.int64).T
        runs, upto, brings = self._runs.of(requests, starts)
        steps = brings
        if rules.asynchronous:
            steps = brings + ~_foresees_end(base, limit, upto, brings)
        at = (steps + 1).cumsum() - steps - 1
        entries, ends = int(at[-1] + steps[-1] + 1), brings.cumsum()
        drawn = np.repeat(at - ends + brings, brings) + np.arange(len(runs))  # the entry of each draw
        got = np.zeros(entries, np.int64)
        got[at] = base
        got[drawn + 1] = upto + np.repeat(base, brings)
        table = np.zeros((entries, COLUMNS), np.int64)
        drafts, tokens, own_runs = table[:, DRAFTS], table[:, TOKENS], np.zeros(entries, np.int16)
        accepted = np.maximum(runs, 0)
        own_runs[drawn], tokens[drawn] = runs, accepted + 1
        brought = brings > 0
        tokens[(at + brings - 1)[brought]] -= upto[ends[brought] - 1] - left[brought]
        drafts.fill(rules.speculation.k)
        if rules.asynchronous:
            drafts[at] *= lead
        else:
            drafts[drawn[runs == NOTHING]] = 0
        computed = self._ahead(got, at, base + ahead, lead) if rules.asynchronous else got
        blocks = self._fill(table, computed, at, held)
        return Courses(
            starts,
            brings.tolist(),
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

    def _fill(self, table: Ints, computed: Ints, at: Ints, held: Ints) -> Ints:
        """Fill in keys and newly allocated blocks; return the number of blocks held in each step, from `held` on."""
        rules = self._rules
        keys = table[:, KEYS] = computed + table[:, DRAFTS] + 1
        if rules.window:
            table[:, WINDOW] = np.minimum(keys, rules.window)
        blocks: Ints = np.minimum(keys + rules.speculation.lookahead, rules.max_model_len) + rules.block_size - 1
        blocks //= rules.block_size
        if self._gaps or (blocks[at] < held).any():  # blocks allocated for more drafts are kept
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


class _Runs:
    """Reads the runs of sequences until they have their tokens."""

    def __init__(self, law: AcceptanceLaw, depth: int) -> None:
        self._law = law
        self._usual = 1 + depth / 2  # recent mean tokens of a step, from which the number of draws is guessed

    def of(self, requests: Sequence[int], starts: list[Start]) -> tuple[Ints, Ints, Ints]:
        """Return the runs of the requests' steps until they have the tokens that are left, one request after the other,
        the tokens of a request after each, and the number of steps of each request."""
        left = [start.left for start in starts]
        counts = [min(tokens, int(1.1 * tokens / self._usual) + 8) or 1 for tokens in left]
        pieces = list(map(self._some, requests, starts, counts))
        needed = np.array(left)
        while True:
            sizes = np.array([len(piece) for piece in pieces])
            ends = sizes.cumsum()
            runs = np.concatenate(pieces)
            gains = np.maximum(runs, 0) + 1
            upto = gains.cumsum(dtype=np.int64)
            totals = upto[ends - 1]
            upto -= np.repeat(totals, sizes) - np.repeat(np.diff(totals, prepend=0), sizes)
            short = np.flatnonzero(upto[ends - 1] < needed).tolist()
            if not short:
                break
            for number in short:
                counts[number] = min(left[number], 2 * counts[number])
                pieces[number] = self._some(requests[number], starts[number], counts[number])
        kept = upto - gains < np.repeat(needed, sizes)
        steps = np.add.reduceat(kept, ends - sizes, dtype=np.int64)
        total = steps.sum()
        if total:
            self._usual += (needed.sum() / total - self._usual) * len(starts) / (len(starts) + 31)
        return runs[kept], upto[kept], steps

    def _some(self, index: int, start: Start, count: int) -> Ints:
        """Return the runs of `count` steps of a request for which drafts were proposed, after one without if its first
        step is."""
        runs = self._law.some(index, start.draws, count)
        return runs if start.lead else np.concatenate([_NONE, runs])


def _as_bytes(column: Ints) -> bytes:
    return column.astype(np.uint8).tobytes()


def _foresees_end(base: Ints, limit: Ints, upto: Ints, brings: Ints) -> NDArray[np.bool_]:
    """Return, by sequence, whether the scheduler knows, before it forms one step too many, that the last token is in
    flight.

    It must know this even if all drafts in flight are rejected. `base` tokens are computed at the start, `limit` is the
    most tokens of the sequence, `upto` the tokens after each step, and `brings` the numbers of steps.
    """
    sure, many = base.copy(), brings > 1
    sure[many] += upto[brings.cumsum()[many] - 2]
    foresees: NDArray[np.bool_] = sure + 1 + (brings > 0) >= limit  # without a step, it is the token of the prompt
    return foresees
