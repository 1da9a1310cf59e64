"""A request as a batch policy sees it: what has been computed, never what is still to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class SequenceState:
    """One request inside a replica.

    A step computes tokens in order, from `computed` on. `target` is the number of tokens there will be to compute once
    the steps in flight have delivered theirs: the prompt, then one more for each token of output. A sequence is
    `decoding` once its prompt (after a preemption: its prompt and output) has been scheduled to the end: from then on
    it advances by one token a step, unless a plan says otherwise.

    `cached` tokens were found in the prefix cache at the last admission.

    There is deliberately no output length here: a policy cannot read the future. `max_tokens` is what the client
    allowed.
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
        self.order = -1  # rank by admission, of all admissions to its replica

    @property
    def todo(self) -> int:
        """Tokens that a step could compute now; 0 if its last token is on its way."""
        return self.target - self.computed

    def expect(self, delivered: int) -> None:
        """Its prompt is computed elsewhere, and that many tokens are delivered: all but the last known token's KV is
        to come from there."""
        self.target = self.prompt_tokens + delivered
        self.computed = self.target - 1

    def start_over(self, delivered: int) -> None:
        """Nothing came: its prompt, and that many delivered tokens, are still to be computed."""
        self.expect(delivered)
        self.computed = self.cached = 0

    def __repr__(self) -> str:
        return f"<Sequence {self.index}: {self.computed} of {self.target} computed, {self.blocks} blocks>"


class ContentSequence(SequenceState):
    """A sequence whose blocks have content, for prefix caching.

    Block i has the content `shared[i]`, or, beyond that list, content that only this request has. `table` lists the
    blocks that it holds, of which the first `registered` can be found by their content.
    """

    __slots__ = ("registered", "shared", "table")

    def __init__(self, index: int, prompt_tokens: int, max_tokens: int, shared: Sequence[int] = ()) -> None:
        super().__init__(index, prompt_tokens, max_tokens)
        self.shared = shared
        self.registered = 0
        self.table: list[int] = []


class TrackedSequence(ContentSequence):
    """A sequence with the books of the complete vLLM policy, in which outputs are in flight.

    `known` tokens are the prompt and the output that has been delivered; `target` - `known` is what scheduled steps
    will still deliver if every draft of theirs is accepted. `in_flight` tokens are scheduled and not yet processed.
    `drafts` are proposed for the next step.

    For the engine alone: `runs` are the draws of what becomes of drafts, `run` the next one if it has been looked at,
    and `events` the tokens that each step of the current range brought.
    """

    __slots__ = (
        "arrival_ns",
        "drafts",
        "events",
        "finished",
        "first_step",
        "in_flight",
        "known",
        "last_step",
        "priority",
        "run",
        "runs",
    )

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        max_tokens: int,
        priority: int = 0,
        arrival_ns: int = 0,
        shared: Sequence[int] = (),
    ) -> None:
        super().__init__(index, prompt_tokens, max_tokens, shared)
        self.priority = priority
        self.arrival_ns = arrival_ns
        self.known = prompt_tokens
        self.drafts = self.in_flight = 0
        self.finished = False
        self.first_step = self.last_step = -2  # of the current range of steps that each brought it a token
        self.events = bytearray()
        self.run: int | None = None
        self.runs: Iterator[int] | None = None

    @property
    def todo(self) -> int:
        """Tokens that a step could compute now, drafts included; 0 if its last token is on its way even if all drafts
        under way are rejected."""
        target, known, computed = self.target, self.known, self.computed
        if target > known and computed + 2 - target + known >= self.prompt_tokens + self.max_tokens:
            return 0
        return target + self.drafts - computed

    def expect(self, delivered: int) -> None:
        super().expect(delivered)
        self.known = self.target
