"""Quantities of speculative decoding in vLLM's scheduler."""

from __future__ import annotations

from typing import NamedTuple

from simulator.memory import DraftNeeds

#: Methods that vLLM treats as EAGLE (`use_eagle`): their drafter has KV, and needs the token after each one.
_EAGLE = ("eagle", "eagle3", "mtp")


class Speculation(NamedTuple):
    """Speculative decoding with at most `k` drafts a step.

    `method` is that of a scenario; `lookahead_hashing` as in `VllmScheduler`.
    """

    method: str
    k: int
    lookahead_hashing: bool = True

    @property
    def lookahead(self) -> int:
        """Tokens after the scheduled ones for which blocks are allocated."""
        return self.k if self.method == "draft_model" or self.method in _EAGLE else 0

    def beyond(self, asynchronous: bool) -> int:
        """Return the tokens after the last one of a request for which blocks may be allocated.

        They are the drafts of its last step, with asynchronous scheduling those of the step that is formed before it
        has ended, and the look-ahead tokens.
        """
        return self.k * (2 if asynchronous else 1) + self.lookahead

    @property
    def surcharge(self) -> int:
        """Token budget of a sequence in addition to its tokens."""
        return int(self.method == "draft_model")

    @property
    def step_tokens(self) -> int:
        """Token budget of a decode with all of its drafts."""
        return 1 + self.k + self.surcharge

    @property
    def next_token(self) -> int:
        """1 if a block's hash covers the token after it, too, else 0."""
        return int(self.lookahead_hashing and self.method in _EAGLE)

    @property
    def drops_last(self) -> bool:
        """Whether the last cached block is computed again, for the hidden states that the drafter needs."""
        return self.method in _EAGLE and not self.lookahead_hashing

    def asks(self, asynchronous: bool) -> DraftNeeds:
        """Return the needs of the drafts in KV memory."""
        return DraftNeeds(self.beyond(asynchronous), self.drops_last)
