"""Speculative decoding as vLLM's scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.memory import DraftNeeds

#: Methods that vLLM treats as EAGLE (`use_eagle`): their drafter has KV, and needs the token after each.
_EAGLE = ("eagle", "eagle3", "mtp")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding as the scheduler sees it: at most `k` drafts a step. `method` is that of a scenario;
    `lookahead_hashing` as in `VllmScheduler`."""

    method: str
    k: int
    lookahead_hashing: bool = True

    @property
    def lookahead(self) -> int:
        """Tokens beyond the scheduled ones for which blocks are taken."""
        return self.k if self.method == "draft_model" or self.method in _EAGLE else 0

    def beyond(self, asynchronous: bool) -> int:
        """Tokens past the last one of a request for which blocks may be asked: the drafts of its last step, and
        asynchronously those of the step that is formed before that one has ended; and what is looked ahead."""
        return self.k * (2 if asynchronous else 1) + self.lookahead

    @property
    def surcharge(self) -> int:
        """Budget that a sequence costs beyond its tokens."""
        return int(self.method == "draft_model")

    @property
    def step_tokens(self) -> int:
        """Budget that a decode with all of its drafts costs."""
        return 1 + self.k + self.surcharge

    @property
    def next_token(self) -> int:
        """1 if a block's hash covers the token after it, too."""
        return int(self.lookahead_hashing and self.method in _EAGLE)

    @property
    def drops_last(self) -> bool:
        """Whether the last of the found blocks is computed again, for the hidden states that the drafter needs."""
        return self.method in _EAGLE and not self.lookahead_hashing

    def asks(self, asynchronous: bool) -> DraftNeeds:
        """Needs of the drafts in KV memory."""
        return DraftNeeds(self.beyond(asynchronous), self.drops_last)
