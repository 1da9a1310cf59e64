"""A request as a batch policy sees it: what has been computed, never what is still to come."""

from __future__ import annotations


class Sequence:
    """One request inside a replica.

    A step computes tokens in order, from `computed` on. `target` is the number of tokens there will be to compute once
    the steps in flight have delivered theirs: the prompt, then one more for each token of output. A sequence is
    `decoding` once its prompt (after a preemption: its prompt and output) has been scheduled to the end: from then on
    it advances by one token a step, unless a plan says otherwise.

    There is deliberately no output length here: a policy cannot read the future. `max_tokens` is what the client
    allowed.
    """

    __slots__ = (
        "blocks",
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
        self.target = prompt_tokens
        self.blocks = 0
        self.decoding = False
        self.preemptions = 0
        self.order = -1  # rank by admission, of all admissions to its replica

    @property
    def todo(self) -> int:
        """Tokens that a step could compute now; 0 if its last token is on its way."""
        return self.target - self.computed

    def __repr__(self) -> str:
        return f"<Sequence {self.index}: {self.computed} of {self.target} computed, {self.blocks} blocks>"
