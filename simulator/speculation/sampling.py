"""The exact reference of verification: speculative sampling of chains and trees, and two rules that are not exact.

Laws are arrays of shape (V,), next-token probabilities over a vocabulary of V tokens; `target` (p) is the model that is
served, `draft` (q) the one that proposes. Greedy decoding, temperature 0, is the case of a one-hot p: a draft is then
accepted if it is the target's token, which replaces any other draft. A proposer that does not sample, such as an n-gram
lookup or a greedy head, has a one-hot q.

Why speculative sampling is exact (Leviathan et al., arXiv 2211.17192, appendix A.1; Chen et al., arXiv 2302.01318). A
draft x ~ q is accepted with probability min(1, p(x)/q(x)), so that it is drawn and accepted with min(p(x), q(x)).
Summed over x, that is the probability of acceptance, alpha = 1 - TV(p, q). If it is rejected, the token is drawn from
the residual max(p - q, 0) / (1 - alpha). Together they give x the probability

    min(p(x), q(x)) + (1 - alpha) max(p(x) - q(x), 0) / (1 - alpha) = p(x).

A chain repeats this at each position, given the tokens accepted before it. Since every token has the target's law given
its prefix, so has the text.
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

#: Thresholds in Medusa's code: posterior_threshold, and posterior_alpha, its square root.
TYPICAL_EPSILON, TYPICAL_DELTA = 0.09, 0.3


# --- laws -----------------------------------------------------------------------------------------------------------


def total_variation(a: Law, b: Law) -> float:
    """Return half the sum of |a - b|: the largest difference in the probability of any set of tokens."""
    return float(np.abs(a - b).sum()) / 2


def acceptance_probability(target: Law, draft: Law) -> float:
    """Return the probability that speculative sampling accepts a draft: the sum of min(p, q)."""
    return float(np.minimum(target, draft).sum())


def residual(target: Law, draft: Law) -> Law:
    """Return the law of the token that replaces a rejected draft; p if p = q, where no draft is rejected."""
    excess = np.maximum(target - draft, 0)
    mass = excess.sum()
    return excess / mass if mass > 0 else target


def draw(law: Law, rng: np.random.Generator) -> int:
    """Draw a token by inversion; never one of probability 0."""
    reached = np.cumsum(law)
    return int(np.searchsorted(reached, rng.random() * reached[-1], side="right"))


# --- chains ---------------------------------------------------------------------------------------------------------


class Verified(NamedTuple):
    """Tokens of a step: the drafts accepted, in order, and the token of the target that follows them."""

    accepted: tuple[int, ...]
    token: int


def verify_chain(target: Law, draft: Law, drafts: Sequence[int], rng: np.random.Generator) -> Verified:
    """Verify a chain of k drafts by speculative sampling.

    `target` has shape (k + 1, V): the law at each draft's position given the drafts before it, and that after the
    last. `draft` has shape (k, V): the laws that the drafts were drawn from. Raises ValueError for a draft with
    probability 0 in its law, since the result would not have the target's law.
    """
    for position, token in enumerate(drafts):
        if not _accepts(target[position], draft[position], token, rng):
            return Verified(tuple(drafts[:position]), draw(residual(target[position], draft[position]), rng))
    return Verified(tuple(drafts), draw(target[len(drafts)], rng))


def _accepts(target: Law, draft: Law, token: int, rng: np.random.Generator) -> bool:
    """Return whether a draft drawn from `draft` is accepted: with probability min(1, p/q)."""
    if not draft[token] > 0:
        raise ValueError(f"token {token} was not drawn from its law, in which its probability is 0")
    return bool(rng.random() * draft[token] < target[token])


# --- trees ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node in a tree of drafts: the laws of the next token, and the candidates drawn for it, in their order.

    `children[i]` is the node after candidate `tokens[i]`. A node without candidates is a leaf.
    """

    target: Law
    draft: Law
    tokens: tuple[int, ...] = ()
    children: tuple[Node, ...] = ()


LawOf = Callable[[tuple[int, ...]], Law]


def draw_tree(
    target: LawOf, draft: LawOf, widths: Sequence[int], rng: np.random.Generator, prefix: tuple[int, ...] = ()
) -> Node:
    """Draw a tree with `widths[d]` candidates at every node of depth d, without replacement from the draft's law.

    `target` and `draft` return the law of the token after a text. There are fewer candidates where fewer tokens have a
    probability above 0.
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
    """Verify a tree whose candidates were drawn without replacement, by recursive rejection sampling.

    At each node the candidates are tried in their order. Candidate i is drawn from q_i, that is q without the
    candidates before it, and tried against p_i: p_1 = p, and p_(i+1) is the residual of p_i and q_i. If none is
    accepted, the token is drawn from the last residual; if one is, its node is next.

    This is exact (Jeon et al., Recursive Speculative Decoding, arXiv 2402.14160; SpecInfer, arXiv 2305.09781, has it
    for candidates drawn with replacement). Given the candidates rejected before it, which determine p_i and q_i,
    candidate i has law q_i; so trying it, and else drawing from p_(i+1), gives law p_i by the proof for one draft. By
    induction from the last candidate to the first, the token of a node has law p_1 = p.
    """
    accepted: list[int] = []
    while True:
        chosen, left = _choose(node, rng)
        if chosen is None:
            return Verified(tuple(accepted), draw(left, rng))
        accepted.append(node.tokens[chosen])
        node = node.children[chosen]


def _choose(node: Node, rng: np.random.Generator) -> tuple[int | None, Law]:
    """Return the index of the accepted candidate, or None, and the law from which the token is then drawn."""
    target, draft = node.target, node.draft
    for index, token in enumerate(node.tokens):
        if _accepts(target, draft, token, rng):
            return index, target
        target, draft = residual(target, draft), _without(draft, token)
    return None, target


def _without(law: Law, token: int) -> Law:
    """Return `law` under the condition that the token is not `token`; all zeros if no other is possible."""
    left = law.copy()
    left[token] = 0
    mass = left.sum()
    return left / mass if mass > 0 else left


def candidates_law(target: Law, draft: Law, width: int) -> tuple[Law, float]:
    """Return the law of the token of a node with `width` candidates, and the probability that one of them is accepted.

    It is a sum over all orders in which candidates can be drawn and rejected: V^width terms, for small vocabularies.
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
    """Return the probability of each token to be drafted and accepted: shape (V,), with the rule's acceptance as sum.

    `rejection`: speculative sampling.
    `argmax`: the drafter proposes its most probable token; it is accepted if it is the target's most probable one, too.
    `typical`: the draft is drawn from q and accepted if p(x) > min(epsilon, delta exp(-H(p))) (Medusa, arXiv
    2401.10774, section 2.3.1); q is one-hot for heads that propose their most probable token.
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
    """Return the law of the next token under a rule: an accepted draft, or the token that replaces a rejected one.

    The replacement is drawn from the residual under `rejection`, and from the target's law under the other two.
    """
    accepted = accepted_law(target, draft, rule)
    replacement = residual(target, draft) if rule == "rejection" else target
    law: Law = accepted + (1 - accepted.sum()) * replacement
    return law


def typical_threshold(target: Law) -> float:
    """Return the probability above which typical acceptance accepts a token: it falls with the target's entropy."""
    positive = target[target > 0]
    entropy = -float((positive * np.log(positive)).sum())
    return min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-entropy))
