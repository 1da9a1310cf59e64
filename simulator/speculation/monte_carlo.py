"""Texts written by speculative decoding, many at once, to compare with the target's law.

Target and draft are first-order Markov chains: row i of an array of shape (V, V) is the law of what follows token i.
Rules are those of `sampling`, drawn token by token, so that nothing here uses the law of the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.speculation.sampling import Law, Rule, residual, typical_threshold

Tokens = NDArray[np.int64]


class TextSampler:
    """Writes texts of the target's law by speculative decoding, in steps of `k` drafts."""

    def __init__(self, target: Law, draft: Law, k: int, rule: Rule, rng: np.random.Generator) -> None:
        self._target, self._draft, self._k, self._rule, self._rng = target, draft, k, rule, rng
        #: For each token before it, the law of the token in the place of a rejected draft.
        self._corrections = target
        if rule == "rejection":
            self._corrections = np.array([residual(p, q) for p, q in zip(target, draft, strict=True)])

    def write(self, length: int, count: int) -> tuple[Tokens, Tokens]:
        """Write `count` texts of `length` tokens after token 0; return them, and the tokens of all steps.

        The first has shape (count, length). The second has the number of tokens that each step brought, before the
        last step of a text is cut to its length, for all steps of all texts in one array.
        """
        texts = np.zeros((count, length + self._k + 1), dtype=np.int64)
        written = np.zeros(count, dtype=np.int64)
        brought: list[Tokens] = []
        while (unfinished := np.flatnonzero(written < length)).size:
            done = written[unfinished]
            previous = np.where(done > 0, texts[unfinished, done - 1], 0)
            tokens, lengths = self.step(previous)
            for position in range(self._k + 1):
                rows = lengths > position
                texts[unfinished[rows], done[rows] + position] = tokens[rows, position]
            written[unfinished] += lengths
            brought.append(lengths)
        return texts[:, :length], np.concatenate(brought)

    def step(self, previous: Tokens) -> tuple[Tokens, Tokens]:
        """Take one step of each sequence after its token in `previous`, of shape (n,); return tokens (n, k + 1), and
        how many of them count."""
        tokens = np.zeros((previous.size, self._k + 1), dtype=np.int64)
        lengths = np.full(previous.size, self._k + 1, dtype=np.int64)
        active = np.arange(previous.size)
        last = previous
        for position in range(self._k):
            drafts = self._draft.argmax(1)[last] if self._rule == "argmax" else _draw(self._draft[last], self._rng)
            accepted = self._accepts(last, drafts)
            rejected = active[~accepted]
            tokens[rejected, position] = _draw(self._corrections[last[~accepted]], self._rng)
            lengths[rejected] = position + 1
            active, last = active[accepted], drafts[accepted]
            tokens[active, position] = last
        tokens[active, self._k] = _draw(self._target[last], self._rng)
        return tokens, lengths

    def _accepts(self, last: Tokens, drafts: Tokens) -> NDArray[np.bool_]:
        """Return whether each draft is accepted after the token in `last`; both have shape (n,)."""
        target = self._target
        if self._rule == "rejection":
            return np.asarray(self._rng.random(drafts.size) * self._draft[last, drafts] < target[last, drafts])
        if self._rule == "argmax":
            return np.asarray(drafts == target.argmax(1)[last])
        thresholds = np.array([typical_threshold(law) for law in target])
        return np.asarray(target[last, drafts] > thresholds[last])


def _draw(laws: Law, rng: np.random.Generator) -> Tokens:
    """A token of each row's law, by inversion."""
    reached = np.cumsum(laws, axis=1)
    return np.asarray((reached <= rng.random((len(laws), 1)) * reached[:, -1:]).sum(axis=1))
