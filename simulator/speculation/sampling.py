"""The exact reference of verification: speculative sampling of chains and trees, and two rules that are not exact.

Laws are arrays of shape (V,), next-token probabilities over a vocabulary of V tokens; `target` (p) is the model that is
served, `draft` (q) the one that proposes. Greedy decoding, temperature 0, is the case of a one-hot p: a draft is then
accepted if it is the target's token, and the target's token takes the place of one that is not. A proposer that draws
nothing, such as an n-gram lookup or a greedy head, has a one-hot q.

Why speculative sampling is exact (Leviathan et al., arXiv 2211.17192, appendix A.1; Chen et al., arXiv 2302.01318). A
draft x ~ q is accepted with probability min(1, p(x)/q(x)), so that it is drawn and accepted with min(p(x), q(x)).
Summed over x, that is the probability of acceptance, alpha = 1 - TV(p, q). If it is rejected, the token is drawn from
the residual max(p - q, 0) / (1 - alpha). Together they give x the probability

    min(p(x), q(x)) + (1 - alpha) max(p(x) - q(x), 0) / (1 - alpha) = p(x).

A chain does so at one position after the other, each given the tokens accepted before it; as every token has the
target's law given its prefix, so has the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]
Rule = Literal["rejection", "argmax", "typical"]

#: Medusa's thresholds, as its code has them: posterior_threshold, and posterior_alpha, its square root.
TYPICAL_EPSILON, TYPICAL_DELTA = 0.09, 0.3


# --- laws -----------------------------------------------------------------------------------------------------------


def total_variation(a: Law, b: Law) -> float:
    """Half the sum of |a - b|: the most by which the probability of any set of tokens differs."""
    return float(np.abs(a - b).sum()) / 2


def acceptance_probability(target: Law, draft: Law) -> float:
    """The probability that speculative sampling accepts a draft: the sum of min(p, q)."""
    return float(np.minimum(target, draft).sum())


def residual(target: Law, draft: Law) -> Law:
    """The law of the token in place of a rejected draft. Where p = q nothing is rejected; it is p then."""
    excess = np.maximum(target - draft, 0)
    mass = excess.sum()
    return excess / mass if mass > 0 else target


def draw(law: Law, rng: np.random.Generator) -> int:
    """A token by inversion; never one of probability 0."""
    reached = np.cumsum(law)
    return int(np.searchsorted(reached, rng.random() * reached[-1], side="right"))


# --- chains ---------------------------------------------------------------------------------------------------------


class Verified(NamedTuple):
    """Tokens of a step: the drafts accepted, in order, and the token of the target that follows them."""

    accepted: tuple[int, ...]
    token: int


def verify_chain(target: Law, draft: Law, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
    """Speculative sampling of a chain of k drafts.

    `target` has shape (k + 1, V): the law at each draft's position given the drafts before it, and that after the
    last. `draft` has shape (k, V): the laws that the drafts were drawn from. Raises ValueError for a draft that has
    probability 0 in its law, since what follows would not have the target's law.
    """
    for position, token in enumerate(drafts):
        if not _accepts(target[position], draft[position], token, rng):
            return Verified(tuple(drafts[:position]), draw(residual(target[position], draft[position]), rng))
    return Verified(tuple(drafts), draw(target[len(drafts)], rng))


def _accepts(target: Law, draft: Law, token: int, rng: np.random.Generator) -> bool:
    """Whether a draft drawn from `draft` is accepted: with probability min(1, p/q)."""
    if not draft[token] > 0:
        raise ValueError(f"token {token} was not drawn from its law, in which its probability is 0")
    return bool(rng.random() * draft[token] < target[token])


# --- trees ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A place in a tree of drafts: the laws of what follows it, and the candidates drawn for that, in their order.

    `children[i]` is the place behind candidate `tokens[i]`. A place without candidates ends its branch.
    """

    target: Law
    draft: Law
    tokens: tuple[int, ...] = ()
    children: tuple[Node, ...] = ()


LawOf = Callable[[tuple[int, ...]], Law]


def draw_tree(
    target: LawOf, draft: LawOf, widths: Sequence[int], rng: np.random.Generator, prefix: tuple[int, ...] = ()
) -> Node:
    """A tree with `widths[d]` candidates behind every place of depth d, drawn without replacement from the draft's law.

    `target` and `draft` give the law of what follows a text. Where fewer tokens have a probability above 0, there are
    fewer candidates.
    """
    law = draft(prefix)
    tokens: list[int] = []
    if widths:
        left = law
        while len(tokens) < widths[0] and left.any():
            tokens.append(draw(left, rng))
            left = _without(left, tokens[-1])
    children = [draw_tree(target, draft, widths[1:], rng, (*prefix, token)) for token in tokens]
    return Node(target(prefix), law, tuple(tokens), tuple(children))


def verify_tree(node: Node, rng: np.random.Generator) -> Verified:
    """Speculative sampling of a tree whose candidates were drawn without replacement: recursive rejection sampling.

    At each place the candidates are tried in their order. Candidate i is drawn from q_i, that is q without the
    candidates before it, and tried against p_i: p_1 = p, and p_(i+1) is the residual of p_i and q_i. If none is
    accepted, the token is drawn from the last residual; if one is, its place is next.

    This is exact (Jeon et al., Recursive Speculative Decoding, arXiv 2402.14160; SpecInfer, arXiv 2305.09781, has it
    for candidates drawn with replacement). Given the candidates rejected before it, which fix p_i and q_i, candidate i
    has law q_i; so trying it, and else drawing from p_(i+1), gives law p_i by the proof for one draft. From the last
    candidate backwards: what the whole place brings has law p_1 = p.
    """
    accepted: list[int] = []
    while True:
        chosen, left = _choose(node, rng)
        if chosen is None:
            return Verified(tuple(accepted), draw(left, rng))
        accepted.append(node.tokens[chosen])
        node = node.children[chosen]


def _choose(node: Node, rng: np.random.Generator) -> tuple[int | None, Law]:
    """The index of the candidate that is accepted, or None, and what is left of the target's law."""
    target, draft = node.target, node.draft
    for index, token in enumerate(node.tokens):
        if _accepts(target, draft, token, rng):
            return index, target
        target, draft = residual(target, draft), _without(draft, token)
    return None, target


def _without(law: Law, token: int) -> Law:
    """`law` given that it is not `token`; all zeros if it could be nothing else."""
    left = law.copy()
    left[token] = 0
    mass = left.sum()
    return left / mass if mass > 0 else left


def candidates_law(target: Law, draft: Law, width: int) -> tuple[Law, float]:
    """The law of what a place with `width` candidates brings, and the probability that one of them is accepted.

    It adds up all orders in which candidates can be drawn and rejected: V^width terms, for small vocabularies.
    """
    if width == 0 or not draft.any():
        return target, 0.0
    kept = np.minimum(target, draft)
    law, acceptance = kept.copy(), float(kept.sum())
    for token in np.flatnonzero(draft > kept):
        rejected = draft[token] - kept[token]
        deeper, deeper_acceptance = candidates_law(residual(target, draft), _without(draft, int(token)), width - 1)
        law += rejected * deeper
        acceptance += rejected * deeper_acceptance
    return law, acceptance


# --- rules ----------------------------------------------------------------------------------------------------------


def accepted_law(target: Law, draft: Law, rule: Rule) -> Law:
    """The probability of each token to be the draft and accepted: shape (V,), adding up to the rule's acceptance.

    `rejection`: speculative sampling.
    `argmax`: the drafter proposes its most probable token, and it counts if it is the target's most probable one too.
    `typical`: the draft is drawn from q, and counts if p(x) > min(epsilon, delta exp(-H(p))) (Medusa, arXiv 2401.10774,
    section 2.3.1); q is one-hot for heads that propose their most probable token.
    """
    if rule == "rejection":
        return np.minimum(target, draft)
    if rule == "argmax":
        law = np.zeros_like(target)
        if target.argmax() == draft.argmax():
            law[target.argmax()] = 1
        return law
    return np.where(target > typical_threshold(target), draft, 0)


def output_law(target: Law, draft: Law, rule: Rule) -> Law:
    """The law of the next token under a rule: of an accepted draft, or of what the target puts in place of another.

    That is the residual under `rejection`, and a token drawn from the target's law under the other two.
    """
    accepted = accepted_law(target, draft, rule)
    replacement = residual(target, draft) if rule == "rejection" else target
    law: Law = accepted + (1 - accepted.sum()) * replacement
    return law


def typical_threshold(target: Law) -> float:
    """The probability above which typical acceptance takes a token: lower, the more uncertain the target is."""
    positive = target[target > 0]
    entropy = -float((positive * np.log(positive)).sum())
    return min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-entropy))
