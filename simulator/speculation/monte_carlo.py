"""Texts written by speculative decoding, many at once: what tests and pictures hold against the target's law.

Target and draft are first-order Markov chains: row i of an array of shape (V, V) is the law of what follows token i.
Rules are those of `sampling`, drawn token by token, so that nothing here uses the law of the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.speculation.sampling import Law, Rule, residual, typical_threshold

Tokens = NDArray[np.int64]


def write(
    target: Law, draft: Law, k: int, rule: Rule, *, length: int, count: int, rng: np.random.Generator
) -> tuple[Tokens, Tokens]:
    """`count` texts of `length` tokens after token 0, in steps of `k` drafts, and the tokens of all those steps.

    The first has shape (count, length). The second has the number of tokens that each step brought, before the last
    step of a text is cut to its length, for all steps of all texts in one array.
    """
    texts = np.zeros((count, length + k + 1), dtype=np.int64)
    written = np.zeros(count, dtype=np.int64)
    brought: list[Tokens] = []
    while (unfinished := np.flatnonzero(written < length)).size:
        done = written[unfinished]
        previous = np.where(done > 0, texts[unfinished, done - 1], 0)
        tokens, lengths = step(target, draft, previous, k, rule, rng)
        for position in range(k + 1):
            rows = lengths > position
            texts[unfinished[rows], done[rows] + position] = tokens[rows, position]
        written[unfinished] += lengths
        brought.append(lengths)
    return texts[:, :length], np.concatenate(brought)


def step(
    target: Law, draft: Law, previous: Tokens, k: int, rule: Rule, rng: np.random.Generator
) -> tuple[Tokens, Tokens]:
    """One step of each sequence after its token in `previous`, of shape (n,): tokens (n, k + 1), and how many count."""
    corrections = _corrections(target, draft, rule)
    tokens = np.zeros((previous.size, k + 1), dtype=np.int64)
    lengths = np.full(previous.size, k + 1, dtype=np.int64)
    active = np.arange(previous.size)
    last = previous
    for position in range(k):
        drafts = draft.argmax(1)[last] if rule == "argmax" else _draw(draft[last], rng)
        accepted = _accepts(target, draft, last, drafts, rule, rng)
        rejected = active[~accepted]
        tokens[rejected, position] = _draw(corrections[last[~accepted]], rng)
        lengths[rejected] = position + 1
        active, last = active[accepted], drafts[accepted]
        tokens[active, position] = last
    tokens[active, k] = _draw(target[last], rng)
    return tokens, lengths


def _corrections(target: Law, draft: Law, rule: Rule) -> Law:
    """For each token before it, the law of what takes the place of a rejected draft."""
    if rule != "rejection":
        return target
    return np.array([residual(p, q) for p, q in zip(target, draft, strict=True)])


def _accepts(
    target: Law, draft: Law, last: Tokens, drafts: Tokens, rule: Rule, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Whether each draft is accepted after the token in `last`; both have shape (n,)."""
    if rule == "rejection":
        return np.asarray(rng.random(drafts.size) * draft[last, drafts] < target[last, drafts])
    if rule == "argmax":
        return np.asarray(drafts == target.argmax(1)[last])
    thresholds = np.array([typical_threshold(law) for law in target])
    return np.asarray(target[last, drafts] > thresholds[last])


def _draw(laws: Law, rng: np.random.Generator) -> Tokens:
    """A token of each row's law, by inversion."""
    reached = np.cumsum(laws, axis=1)
    return np.asarray((reached <= rng.random((len(laws), 1)) * reached[:, -1:]).sum(axis=1))
