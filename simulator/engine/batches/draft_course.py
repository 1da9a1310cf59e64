"""The decode of one sequence with speculation, of which all steps are drawn at its start."""

from __future__ import annotations

from typing import NamedTuple

from simulator.results.columns import Ints
from simulator.scheduling import Speculation
from simulator.speculation.runs import NOTHING

#: Columns of a table by step: allocated blocks, keys attended to, drafts, tokens, keys within the sliding window.
BLOCKS, KEYS, DRAFTS, TOKENS, WINDOW = range(5)
COLUMNS = 5


class CourseRules(NamedTuple):
    """Settings that the decodes of an engine core depend on, in addition to the draws."""

    speculation: Speculation
    asynchronous: bool
    block_size: int
    window: int
    max_model_len: int


class Start(NamedTuple):
    """State of a sequence at the start of its decode.

    `lead` is 1 if the last chunk of the prompt produced a token: drafts were proposed after it, for the first step.
    `draws` runs had been used before. `base` tokens are computed, and `ahead` more of drafts in flight; `left` are to
    come. `held` blocks are held. The request ends at `limit` tokens at the latest, prompt and output.
    """

    lead: int
    draws: int
    base: int
    ahead: int
    left: int
    held: int
    limit: int


class Courses(NamedTuple):
    """Decodes of several sequences, which started in the states `starts`; see `draft_courses.draw`.

    Of each, the first `token_steps` steps produce tokens; with asynchronous scheduling there may be one more of its
    `steps`, formed before the last token was known. The entries of sequence i in the arrays begin at `at[i]`, one for
    each step, and one after the last.

    `table` (entries * 5,) has a row of the batch's table for each entry, and `blocks` (entries,) the blocks held in the
    step. `computed` are the computed tokens when the step is formed, as if all drafts in flight were accepted; `got`
    those without rejected drafts, before each step that produces tokens and after the last. `runs` are the draws;
    `drafts`, `accepted` and `tokens` are the numbers of drafts, of accepted ones and of tokens, a byte each.
    """

    starts: list[Start]
    token_steps: list[int]
    steps: list[int]
    at: list[int]
    table: Ints
    blocks: Ints
    computed: Ints
    got: Ints
    runs: Ints
    drafts: bytes
    accepted: bytes
    tokens: bytes


class Course:
    """Work of a decode in steps `first`, `first` + 1, ...: number `number` of `courses`.

    Step `last` produces the last token, and `end` follows the last step. A step `at` of a method counts from 0.
    """

    __slots__ = ("_asynchronous", "_at", "_courses", "end", "first", "last", "start", "token_steps")

    def __init__(self, courses: Courses, number: int, first: int, asynchronous: bool) -> None:
        self._courses, self._at, self._asynchronous = courses, courses.at[number], asynchronous
        self.start, self.first = courses.starts[number], first
        self.token_steps = token_steps = courses.token_steps[number]
        self.last = first + token_steps - 1
        self.end = first + courses.steps[number]

    def rows(self, step: int) -> Ints:
        """Return the rows of the table from `step` to the end, as one array."""
        begin = self._at - self.first
        return self._courses.table[COLUMNS * (begin + step) : COLUMNS * (begin + self.end)]

    def drafts(self, at: int) -> int:
        """Return the drafts in step `at`."""
        return self._courses.drafts[self._at + at]

    def tokens(self, at: int) -> int:
        """Return the tokens that step `at` produces."""
        return self._courses.tokens[self._at + at]

    def outcomes(self, steps: int) -> tuple[bytes, bytes, bytes]:
        """Return drafts, accepted drafts and tokens of the first steps."""
        courses, some = self._courses, slice(self._at, self._at + steps)
        return courses.drafts[some], courses.accepted[some], courses.tokens[some]

    def computed(self, at: int) -> int:
        """Return the computed tokens when step `at` is formed, as if all drafts in flight were accepted."""
        return int(self._courses.computed[self._at + at])

    def blocks(self, at: int) -> int:
        """Return the blocks that are held when step `at` is about to be formed."""
        return int(self._courses.blocks[self._at + at - 1]) if at else self.start.held

    def sure(self, at: int) -> int:
        """Return the number of computed tokens whose next token is known when step `at` is formed."""
        if not self._asynchronous:
            return int(self._courses.got[self._at + min(at, max(self.token_steps - 1, 0))])
        return min(int(self._courses.got[self._at + at - 1]), self.start.base + self.start.left) if at else 0

    def known(self, at: int) -> int:
        """Return the number of known tokens after the first `at` steps."""
        return int(self._courses.got[self._at + at]) + 1

    def used(self, at: int) -> int:
        """Return the number of runs used if step `at` is left out.

        With synchronous scheduling, drafts proposed for it are kept; if there were none, that draw counts as used.
        """
        lead = self.start.lead
        proposed = at - (1 - lead) if at else 0
        noticed = not self._asynchronous and (lead or at) and self._courses.runs[self._at + at] == NOTHING
        return self.start.draws + proposed + bool(noticed)
