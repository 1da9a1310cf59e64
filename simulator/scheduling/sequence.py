"""State of a request for a batch policy: the computed tokens, but not the length of the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class SequenceState:
    """State of one request inside a replica.

    A step computes tokens in order, from `computed` on. `target` is the number of tokens to compute once the steps in
    flight have ended: the prompt, and one for each token of output. A sequence is `decoding` once its prompt (after a
    preemption: its prompt and output) has been scheduled to the end: from then on it advances by one token a step,
    unless a plan holds or preempts it.

    `cached` tokens were found in the prefix cache at the last admission.

    The output length is deliberately missing, since a real scheduler does not know it. `max_tokens` is the client's
    limit of output tokens.
    """

    __slots__ = (
        "blocks",
        "cached",
        "computed",
        "decoding",
        "index",
        "max_tokens",
        "order",
        "preemptions",
        "prompt_tokens",
        "target",
    )

    def __init__(self, index: int, prompt_tokens: int, max_tokens: int) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.computed = 0
        self.cached = 0
        self.target = prompt_tokens
        self.blocks = 0
        self.decoding = False
        self.preemptions = 0
        self.order = -1  # number of its admission, of all admissions to its replica

    @property
    def todo(self) -> int:
        """Tokens that a step could compute now; 0 if its last token is in flight."""
        return self.target - self.computed

    def expect(self, delivered: int) -> None:
        """Set the state of a sequence whose KV is transferred from another replica, with `delivered` output tokens.

        The transfer holds the KV of all known tokens except the last one.
        """
        self.target = self.prompt_tokens + delivered
        self.computed = self.target - 1

    def start_over(self, delivered: int) -> None:
        """Set the state after a failed transfer: the prompt and `delivered` output tokens are to be computed again."""
        self.expect(delivered)
        self.computed = self.cached = 0

    def __repr__(self) -> str:
        return f"<Sequence {self.index}: {self.computed} of {self.target} computed, {self.blocks} blocks>"


class ContentSequence(SequenceState):
    """A sequence whose blocks have content, for prefix caching.

    Block i has the content `shared[i]`; blocks after the end of that list have content that only this request has.
    `table` lists the blocks that it holds, of which the first `registered` can be found by their content.
    """

    __slots__ = ("registered", "shared", "table")

    def __init__(self, index: int, prompt_tokens: int, max_tokens: int, shared: Sequence[int] = ()) -> None:
        super().__init__(index, prompt_tokens, max_tokens)
        self.shared = shared
        self.registered = 0
        self.table: list[int] = []


class RankedSequence(ContentSequence):
    """A sequence with a priority; lower values are served first, then earlier arrivals."""

    __slots__ = ("arrival_ns", "priority")

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        max_tokens: int,
        rank: tuple[int, int] = (0, 0),
        shared: Sequence[int] = (),
    ) -> None:
        super().__init__(index, prompt_tokens, max_tokens, shared)
        self.priority, self.arrival_ns = rank


class TrackedSequence(RankedSequence):
    """A sequence with the counts of the complete vLLM policy, with which several steps can be in flight.

    `known` tokens are the prompt and the delivered output; `target` - `known` tokens are delivered by the steps in
    flight if all of their drafts are accepted. `in_flight` tokens are scheduled and not yet processed. `drafts` is the
    number of drafts proposed for the next step.

    Only the engine uses these: `runs` yields the draws of accepted drafts, `run` is the next draw if it has been read,
    and `events` has the number of tokens of each step in the current range.
    """

    __slots__ = (
        "drafts",
        "events",
        "finished",
        "first_step",
        "in_flight",
        "known",
        "last_step",
        "run",
        "runs",
    )

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        max_tokens: int,
        rank: tuple[int, int] = (0, 0),
        shared: Sequence[int] = (),
    ) -> None:
        super().__init__(index, prompt_tokens, max_tokens, rank, shared)
        self.known = prompt_tokens
        self.drafts = self.in_flight = 0
        self.finished = False
        self.first_step = self.last_step = -2  # of the current range of steps that each delivered tokens of it
        self.events = bytearray()
        self.run: int | None = None
        self.runs: Iterator[int] | None = None

    @property
    def todo(self) -> int:
        """Tokens that a step could compute now, including drafts; 0 if its last token is in flight even if all drafts
        in flight are rejected."""
        target, known, computed = self.target, self.known, self.computed
        if target > known and computed + 2 - target + known >= self.prompt_tokens + self.max_tokens:
            return 0
        return target + self.drafts - computed

    def expect(self, delivered: int) -> None:
        super().expect(delivered)
        self.known = self.target
