"""Speculative sampling: laws in closed form, and decisions on values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.speculation.sampling import (
    Law,
    Node,
    Verified,
    acceptance_probability,
    accepted_law,
    candidates_law,
    draw,
    draw_tree,
    output_law,
    residual,
    total_variation,
    typical_threshold,
    verify_chain,
    verify_tree,
)
from tests.unit.speculation.laws import laws

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def one_hot(token: int, size: int = 3) -> Law:
    return np.eye(size)[token]


# --- closed forms ---------------------------------------------------------------------------------------------------


def test_three_tokens_by_hand() -> None:
    assert acceptance_probability(P, Q) == pytest.approx(0.7)
    assert 1 - total_variation(P, Q) == pytest.approx(0.7)
    assert residual(P, Q) == pytest.approx([1, 0, 0])
    assert output_law(P, Q, "rejection") == pytest.approx(P)


def test_a_draft_that_is_far_off_by_hand() -> None:
    target, draft = np.array([0.36, 0.48, 0.16]), np.array([0.1, 0.1, 0.8])
    assert acceptance_probability(target, draft) == pytest.approx(0.36)
    assert residual(target, draft) == pytest.approx([0.40625, 0.59375, 0])
    assert output_law(target, draft, "rejection") == pytest.approx(target)


@given(laws())
def test_rejection_keeps_the_targets_law(pair: tuple[Law, Law]) -> None:
    target, draft = pair
    assert output_law(target, draft, "rejection") == pytest.approx(target, abs=1e-12)
    assert acceptance_probability(target, draft) == pytest.approx(1 - total_variation(target, draft), abs=1e-12)
    assert residual(target, draft).sum() == pytest.approx(1)


@given(laws(most=4), st.integers(0, 3))
def test_candidates_keep_the_targets_law_and_more_are_accepted(pair: tuple[Law, Law], width: int) -> None:
    target, draft = pair
    law, acceptance = candidates_law(target, draft, width)
    _, of_one_more = candidates_law(target, draft, width + 1)
    assert law == pytest.approx(target, abs=1e-12)
    assert -1e-12 <= acceptance <= of_one_more + 1e-12
    assert of_one_more <= 1 + 1e-12


def test_two_candidates_by_hand() -> None:
    """After token 1 or 2 is rejected the target has token 0, which is the second candidate with 0.2 / 0.5 or 0.7."""
    _, acceptance = candidates_law(P, Q, 2)
    assert acceptance == pytest.approx(0.7 + 0.2 * (0.2 / 0.5) + 0.1 * (0.2 / 0.7))
    assert candidates_law(P, Q, 1)[1] == pytest.approx(0.7)


@given(laws())
def test_every_rule_gives_a_law(pair: tuple[Law, Law]) -> None:
    target, draft = pair
    for rule in ("rejection", "argmax", "typical"):
        law = output_law(target, draft, rule)
        assert law.min() >= -1e-12
        assert law.sum() == pytest.approx(1)


def test_argmax_writes_the_most_probable_token_where_both_agree() -> None:
    agreeing = np.array([0.4, 0.35, 0.25])
    assert output_law(P, agreeing, "argmax") == pytest.approx(one_hot(0))
    assert total_variation(output_law(P, agreeing, "argmax"), P) == pytest.approx(1 - P.max())
    assert output_law(P, Q, "argmax") == pytest.approx(P), "they disagree, and the target draws"
    assert accepted_law(P, Q, "argmax").sum() == 0


def test_typical_acceptance_by_hand() -> None:
    """Of four tokens two are above 0.09; entropy exp(-H) x 0.3 is 0.1096, which does not count."""
    target, draft = np.array([0.6, 0.3, 0.06, 0.04]), np.array([0.5, 0.1, 0.2, 0.2])
    assert typical_threshold(target) == pytest.approx(0.09)
    assert accepted_law(target, draft, "typical") == pytest.approx([0.5, 0.1, 0, 0])
    assert output_law(target, draft, "typical") == pytest.approx([0.5 + 0.4 * 0.6, 0.1 + 0.4 * 0.3, 0.024, 0.016])


def test_an_uncertain_target_takes_tokens_that_are_less_probable() -> None:
    assert typical_threshold(np.full(100, 0.01)) == pytest.approx(0.3 / 100)


# --- chains ---------------------------------------------------------------------------------------------------------


def test_drafts_that_are_certain_are_accepted_and_a_bonus_follows() -> None:
    chain = np.stack([one_hot(2), one_hot(0), one_hot(1)])
    assert verify_chain(chain, chain[:2], [2, 0], rng()) == Verified((2, 0), 1)


def test_no_drafts_bring_the_targets_token() -> None:
    assert verify_chain(one_hot(1)[None], np.empty((0, 3)), [], rng()) == Verified((), 1)


def test_greedy_decoding_accepts_what_matches_and_corrects_what_does_not() -> None:
    """A one-hot target is temperature 0, for any law of the draft."""
    target, draft = np.stack([one_hot(0), one_hot(2), one_hot(1)]), np.stack([Q, Q])
    for seed in range(20):
        assert verify_chain(target, draft, [0, 2], rng(seed)) == Verified((0, 2), 1)
        assert verify_chain(target, draft, [0, 1], rng(seed)) == Verified((0,), 2)
        assert verify_chain(target, draft, [1, 2], rng(seed)) == Verified((), 0)


@given(laws())
def test_greedy_acceptance_is_the_drafts_probability_of_the_token(pair: tuple[Law, Law]) -> None:
    target, draft = one_hot(int(pair[0].argmax()), pair[0].size), pair[1]
    assert acceptance_probability(target, draft) == pytest.approx(draft[target.argmax()])


def test_a_draft_that_was_not_drawn_from_its_law_is_refused() -> None:
    with pytest.raises(ValueError, match="token 1 was not drawn from its law"):
        verify_chain(np.stack([P, P]), one_hot(0)[None], [1], rng())


def test_tokens_without_probability_are_not_drawn() -> None:
    law, generator = np.array([0, 0.5, 0, 0.5, 0]), rng()
    assert {draw(law, generator) for _ in range(200)} == {1, 3}


# --- trees ----------------------------------------------------------------------------------------------------------


def tree(widths: tuple[int, ...], target: Law, draft: Law, seed: int = 0) -> Node:
    return draw_tree(lambda _: target, lambda _: draft, widths, rng(seed))


def test_a_tree_has_distinct_candidates_at_every_place() -> None:
    for seed in range(20):
        root = tree((2, 3), P, Q, seed)
        assert len(set(root.tokens)) == len(root.tokens) == 2
        for child in root.children:
            assert sorted(child.tokens) == [0, 1, 2]
            assert all(leaf.tokens == leaf.children == () for leaf in child.children)


def test_there_are_no_more_candidates_than_tokens_that_the_draft_can_say() -> None:
    assert tree((5,), P, np.array([0.5, 0.5, 0])).tokens in ((0, 1), (1, 0))


def test_laws_of_a_tree_follow_the_text() -> None:
    after = {(): one_hot(1), (1,): one_hot(2), (1, 2): one_hot(0)}
    root = draw_tree(after.__getitem__, after.__getitem__, (1, 1), rng())
    assert verify_tree(root, rng()) == Verified((1, 2), 0)


def test_a_greedy_target_finds_its_token_among_the_candidates() -> None:
    for seed in range(20):
        root = tree((2, 1), one_hot(2), Q, seed)
        found = verify_tree(root, rng(seed))
        assert (2 in root.tokens) == (len(found.accepted) > 0)
        assert {*found.accepted, found.token} == {2}


def test_a_candidate_that_could_not_be_drawn_is_refused() -> None:
    leaf = Node(P, Q)
    twice = Node(one_hot(1), Q, (0, 0), (leaf, leaf))
    with pytest.raises(ValueError, match="token 0 was not drawn from its law"):
        verify_tree(twice, rng())
