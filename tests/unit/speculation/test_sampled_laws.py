"""Texts of speculative decoding, against the law of the target alone.

Chi-square tests with fixed seeds. The exact rules must pass at a p-value of 0.001; the wrong ones must fail at 1e-6.
Target and draft are Markov chains over four tokens, so that a token's law depends on the one before it, and the joint
law of a text is known.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from simulator.speculation.expectation import iid_cumulative, token_pmf
from simulator.speculation.monte_carlo import TextSampler
from simulator.speculation.sampling import (
    Law,
    Rule,
    acceptance_probability,
    candidates_law,
    draw,
    draw_tree,
    output_law,
    verify_chain,
    verify_tree,
)
from tests.unit.speculation.laws import joint_law, numbered

SIZE, LENGTH = 4, 3
#: Row i is the law of what follows token i. The two agree on the most probable token after 0 and 3 alone.
TARGET = np.array([[0.45, 0.25, 0.2, 0.1], [0.1, 0.45, 0.2, 0.25], [0.2, 0.1, 0.25, 0.45], [0.25, 0.2, 0.45, 0.1]])
DRAFT = np.array([[0.6, 0.05, 0.1, 0.25], [0.4, 0.2, 0.35, 0.05], [0.3, 0.4, 0.1, 0.2], [0.05, 0.1, 0.75, 0.1]])
PASSES, FAILS = 1e-3, 1e-6


def p_value(counts: np.ndarray, law: Law) -> float:
    """Return the p-value of Pearson's test, which needs an expected count of at least five in every cell."""
    expected = law * counts.sum()
    assert expected.min() >= 5
    return float(stats.chisquare(counts, expected).pvalue)


def p_value_of_texts(rule: Rule, k: int) -> float:
    texts, _ = TextSampler(TARGET, DRAFT, k, rule, np.random.default_rng(7)).write(LENGTH, 60_000)
    return p_value(numbered(texts, SIZE), joint_law(TARGET, LENGTH))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_texts_of_speculative_sampling_have_the_targets_law(k: int) -> None:
    assert p_value_of_texts("rejection", k) > PASSES


@pytest.mark.parametrize("rule", ["argmax", "typical"])
def test_texts_of_the_other_rules_do_not(rule: Rule) -> None:
    assert p_value_of_texts(rule, 2) < FAILS


@pytest.mark.parametrize("rule", ["rejection", "argmax", "typical"])
def test_the_first_token_has_the_law_in_closed_form(rule: Rule) -> None:
    target, draft = np.tile([0.5, 0.3, 0.15, 0.05], (SIZE, 1)), np.tile([0.4, 0.1, 0.2, 0.3], (SIZE, 1))
    law = output_law(target[0], draft[0], rule)
    texts, _ = TextSampler(target, draft, 2, rule, np.random.default_rng(3)).write(1, 20_000)
    counts = numbered(texts, SIZE)
    if rule == "argmax":
        assert counts.tolist() == (20_000 * law).tolist(), "both agree, and nothing else is written"
    else:
        assert p_value(counts, law) > PASSES


def test_steps_bring_as_many_tokens_as_the_closed_form_says() -> None:
    """Laws that do not depend on the text accept independently: iid acceptance, with alpha the sum of min(p, q)."""
    target, draft = np.tile([0.5, 0.3, 0.15, 0.05], (SIZE, 1)), np.tile([0.4, 0.1, 0.2, 0.3], (SIZE, 1))
    _, tokens = TextSampler(target, draft, 3, "rejection", np.random.default_rng(4)).write(1, 20_000)
    pmf = token_pmf(iid_cumulative(acceptance_probability(target[0], draft[0]), 3))
    assert p_value(np.bincount(tokens, minlength=5)[1:], np.array(pmf)) > PASSES


def test_a_greedy_target_writes_its_text_whatever_is_drafted() -> None:
    """Temperature 0 is a one-hot target: the token after token i is always i + 1."""
    target = np.roll(np.eye(SIZE), 1, axis=1)
    texts, tokens = TextSampler(target, DRAFT, 3, "rejection", np.random.default_rng(5)).write(5, 200)
    assert (texts == [1, 2, 3, 0, 1]).all()
    assert {1, 2, 3} <= set(tokens.tolist())


def texts_by_chain(count: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return texts by `verify_chain`, one by one."""
    texts = []
    for _ in range(count):
        text = [0]
        while len(text) <= LENGTH:
            drafted = text[-1:]
            for _ in range(k):
                drafted.append(draw(DRAFT[drafted[-1]], rng))
            found = verify_chain(TARGET[drafted], DRAFT[drafted[:-1]], drafted[1:], rng)
            text += [*found.accepted, found.token]
        texts.append(text[1 : LENGTH + 1])
    return np.array(texts)


def texts_by_tree(count: int, widths: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return texts by `draw_tree` and `verify_tree`, one by one."""
    texts = []
    for _ in range(count):
        text = [0]
        while len(text) <= LENGTH:
            last = text[-1]
            root = draw_tree(
                lambda prefix, last=last: TARGET[(last, *prefix)[-1]],
                lambda prefix, last=last: DRAFT[(last, *prefix)[-1]],
                widths,
                rng,
            )
            found = verify_tree(root, rng)
            text += [*found.accepted, found.token]
        texts.append(text[1 : LENGTH + 1])
    return np.array(texts)


def test_texts_of_verified_chains_have_the_targets_law() -> None:
    counts = numbered(texts_by_chain(12_000, 2, np.random.default_rng(8)), SIZE)
    assert p_value(counts, joint_law(TARGET, LENGTH)) > PASSES


@pytest.mark.parametrize("widths", [(2, 2), (3, 1)])
def test_texts_of_verified_trees_have_the_targets_law(widths: tuple[int, ...]) -> None:
    counts = numbered(texts_by_tree(6_000, widths, np.random.default_rng(9)), SIZE)
    assert p_value(counts, joint_law(TARGET, LENGTH)) > PASSES


def test_candidates_are_accepted_as_often_as_the_closed_form_says() -> None:
    rng, target, draft = np.random.default_rng(10), TARGET[0], DRAFT[0]
    roots = [draw_tree(lambda _: target, lambda _: draft, (2,), rng) for _ in range(10_000)]
    accepted = sum(len(verify_tree(root, rng).accepted) for root in roots)
    _, acceptance = candidates_law(target, draft, 2)
    assert p_value(np.array([accepted, 10_000 - accepted]), np.array([acceptance, 1 - acceptance])) > PASSES
