"""Closed forms against worked values: Leviathan et al. (arXiv 2211.17192) and counters that vLLM printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.speculation.expectation import (
    best_length,
    conditional_rates,
    cumulative_rates,
    equivalent_alpha,
    expected_tokens,
    iid_cumulative,
    operations_factor,
    speed_up,
    token_pmf,
)

probabilities = st.floats(0, 1)
rates = st.lists(probabilities, min_size=1, max_size=10).map(lambda found: cumulative_rates(found))


@pytest.mark.parametrize(
    ("alpha", "k", "tokens", "operations"),
    [
        (0.6, 2, 1.96, 1.53061),
        (0.7, 3, 2.533, 1.57916),
        (0.8, 2, 2.44, 1.22951),
        (0.8, 5, 3.68928, 1.62633),
        (0.9, 2, 2.71, 1.10701),
        (0.9, 10, 6.86189, 1.60306),
    ],
)
def test_leviathans_table_1(alpha: float, k: int, tokens: float, operations: float) -> None:
    """For a drafter without cost, speed-ups are the tokens of a step."""
    expected = expected_tokens(iid_cumulative(alpha, k))
    assert expected == pytest.approx(tokens, abs=5e-6)
    assert speed_up(expected, k, 0) == expected
    assert operations_factor(alpha, k) == pytest.approx(operations, abs=5e-6)


@pytest.mark.parametrize(
    ("alpha", "cost", "best", "gain", "gain_of_5"),
    [
        (0.6, 0.05, 4, 1.92133, 1.90669),
        (0.8, 0.05, 8, 3.09208, 2.95142),
        (0.8, 0.2, 4, 1.86756, 1.84464),
        (0.9, 0.05, 13, 4.67413, 3.74847),
        (0.3, 0.3, 0, 1, 0.571012),
        (0.5, 0.5, 0, 1, 0.5625),
    ],
)
def test_the_best_number_of_drafts(alpha: float, cost: float, best: int, gain: float, gain_of_5: float) -> None:
    assert best_length(alpha, cost, 59) == best
    for k, expected in ((best, gain), (5, gain_of_5)):
        found = speed_up(expected_tokens(iid_cumulative(alpha, k)), k, cost)
        assert found == pytest.approx(expected, abs=5e-6)


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_drafting_pays_only_if_a_draft_is_accepted_more_often_than_it_costs(alpha: float, cost: float) -> None:
    """Corollary 3.9; one draft already does if any number does."""
    one = speed_up(expected_tokens(iid_cumulative(alpha, 1)), 1, cost)
    assert (best_length(alpha, cost, 20) > 0) == (alpha > cost) == (one > 1)


def test_the_law_of_the_number_of_tokens() -> None:
    pmf = token_pmf(iid_cumulative(0.8, 4))
    assert pmf == pytest.approx((0.2, 0.16, 0.128, 0.1024, 0.4096))
    mean = sum(tokens * p for tokens, p in enumerate(pmf, 1))
    assert mean == pytest.approx(3.3616)
    assert sum(tokens**2 * p for tokens, p in enumerate(pmf, 1)) - mean**2 == pytest.approx(2.57005, abs=5e-6)


@given(rates)
def test_the_law_of_tokens_agrees_with_their_mean(cumulative: tuple[float, ...]) -> None:
    pmf = token_pmf(cumulative)
    assert min(pmf) >= 0
    assert sum(pmf) == pytest.approx(1)
    assert sum(tokens * p for tokens, p in enumerate(pmf, 1)) == pytest.approx(expected_tokens(cumulative))


@pytest.mark.parametrize(
    ("cumulative", "tokens", "printed", "conditional"),
    [
        ((0.543, 0.357, 0.264), 2.164, 2.16, None),  # vLLM issue 19254
        ((0.615, 0.464, 0.383), 2.462, 2.46, (0.615, 0.754, 0.825)),  # the same, 10 s later
        ((0.77, 0.45, 0.24), 2.46, 2.46, (0.77, 0.584, 0.533)),  # pull request 24344: EAGLE
        ((0.81, 0.74, 0.7, 0.68, 0.66), 4.59, 4.59, (0.81, 0.914, 0.946, 0.971, 0.971)),  # n-gram
        ((0.73, 0.52, 0.36), 2.61, 2.605, (0.73, 0.712, 0.692)),  # pull request 32628: EAGLE-3
        ((0.72, 0.5, 0.34, 0.22, 0.15), 2.93, 2.925, (0.72, 0.694, 0.68, 0.647, 0.682)),
    ],
)
def test_acceptance_lengths_that_vllm_printed(
    cumulative: tuple[float, ...], tokens: float, printed: float, conditional: tuple[float, ...] | None
) -> None:
    assert expected_tokens(cumulative) == pytest.approx(tokens)
    assert tokens == pytest.approx(printed, abs=0.0051)
    if conditional is not None:
        assert conditional_rates(cumulative) == pytest.approx(conditional, abs=5e-4)


def test_the_share_of_drafts_that_is_accepted() -> None:
    """vLLM issue 19254 printed 38.8% and 48.7%."""
    assert (expected_tokens((0.543, 0.357, 0.264)) - 1) / 3 == pytest.approx(0.388, abs=5e-4)
    assert (expected_tokens((0.615, 0.464, 0.383)) - 1) / 3 == pytest.approx(0.487, abs=5e-4)


@pytest.mark.parametrize(
    ("cumulative", "of_an_iid_fit"),
    [((0.77, 0.45, 0.24), 2.81943), ((0.81, 0.74, 0.7, 0.68, 0.66), 3.77669), ((0.73, 0.52, 0.36), 2.65192)],
)
def test_an_iid_fit_to_the_first_position_is_off(cumulative: tuple[float, ...], of_an_iid_fit: float) -> None:
    assert expected_tokens(iid_cumulative(cumulative[0], len(cumulative))) == pytest.approx(of_an_iid_fit, abs=5e-6)


def test_the_alpha_of_a_length() -> None:
    """vLLM issue 26191: 12208 tokens accepted in 4816 steps of 7 drafts."""
    expected = 1 + 12208 / 4816
    assert expected == pytest.approx(3.53488, abs=5e-6)
    assert equivalent_alpha(expected, 7) == pytest.approx(0.74353, abs=5e-6)
    assert equivalent_alpha(1, 3) == pytest.approx(0)
    assert equivalent_alpha(4, 3) == pytest.approx(1)


@pytest.mark.parametrize("expected", [0.9, 4.1])
def test_a_length_that_no_alpha_gives(expected: float) -> None:
    with pytest.raises(ValueError, match="3 drafts produces 1 to 4 tokens"):
        equivalent_alpha(expected, 3)


@given(rates)
def test_conditional_and_cumulative_rates_are_inverse(cumulative: tuple[float, ...]) -> None:
    assert cumulative_rates(conditional_rates(cumulative)) == pytest.approx(cumulative)


def test_what_is_never_reached_is_never_accepted() -> None:
    assert conditional_rates((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)
    assert operations_factor(0.8, 5, 0.05) == pytest.approx((5 * 0.05 + 6) / 3.68928)
