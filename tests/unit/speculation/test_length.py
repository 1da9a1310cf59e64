"""Rules for the number of drafts: by the batch size, and by acceptance."""

from __future__ import annotations

import math

import pytest

from simulator.scenario.speculation import AdaptiveLength, Eagle, LengthByBatchSize
from simulator.speculation import LengthRule, build_length
from simulator.speculation.expectation import best_length


def rule(draft_cost: float = 0.1, **keys: object) -> LengthRule:
    """Return a rule with step times of 1 + `draft_cost` a draft, for any batch."""
    return build_length(Eagle(num_speculative_tokens=6, **keys), lambda running, drafts, share: 1 + draft_cost * drafts)  # type: ignore[arg-type]


def settled(rule: LengthRule, alpha: float, steps: int = 2000) -> list[int]:
    """Lengths once the rule knows a law of drafts that are accepted with probability `alpha`, dealt out evenly."""
    lengths = []
    for step in range(steps):
        length = rule.length(1)
        lengths.append(length)
        if length:
            share = (step * (math.sqrt(5) - 1) / 2) % 1  # evenly spread over 0 to 1
            accepted = sum(share < alpha**depth for depth in range(1, length + 1))
            rule.observe(length, accepted)
    return lengths[steps // 2 :]


def test_fixed() -> None:
    assert [rule().length(running) for running in (1, 100)] == [6, 6]


def test_by_batch_size() -> None:
    asked = rule(length=LengthByBatchSize(((4, 3), (16, 6), (64, 0))))
    assert [asked.length(running) for running in (1, 3, 4, 15, 16, 63, 64, 500)] == [6, 6, 3, 3, 6, 6, 0, 0]
    with pytest.raises(ValueError, match="asks for 8 drafts, more than num_speculative_tokens"):
        rule(length=LengthByBatchSize(((4, 8),)))


def test_off_above_a_batch_size() -> None:
    asked = rule(disable_by_batch_size=32)
    assert [asked.length(running) for running in (31, 32)] == [6, 0]


@pytest.mark.parametrize(("alpha", "draft_cost"), [(0.8, 0.2), (0.6, 0.05), (0.9, 0.05), (0.5, 0.1)])
def test_adaptive_comes_to_the_best_length(alpha: float, draft_cost: float) -> None:
    lengths = settled(rule(draft_cost, length=AdaptiveLength(half_life=400)), alpha)
    best = best_length(alpha, draft_cost, 6)
    usual = max(set(lengths), key=lengths.count)
    gain = [(1 - alpha ** (k + 1)) / (1 - alpha) / (1 + draft_cost * k) for k in range(7)]
    assert gain[usual] > 0.98 * gain[best]


def test_adaptive_stops_where_nothing_pays_and_tries_again() -> None:
    lengths = settled(rule(0.5, length=AdaptiveLength(period=4)), 0.2)
    assert set(lengths) == {0, 1}
    assert 0.05 < lengths.count(1) / len(lengths) < 0.2


def test_adaptive_counts_lookups_that_found_nothing() -> None:
    """Drafts that all hold, and take a fifth of a step each, pay where there are some for every sequence, and not where
    there are for one in twenty."""
    lengths = {}
    for every in (1, 20):
        asked = rule(0.2, length=AdaptiveLength(period=4))
        lengths[every] = []
        for step in range(800):
            length = asked.length(1)
            lengths[every].append(length)
            if length:
                asked.looked(step % every == 0)
            if length and step % every == 0:
                asked.observe(length, length)
    assert sum(lengths[1][400:]) / 400 > 5
    assert sum(lengths[20][400:]) / 400 < 0.5


def test_adaptive_keeps_its_minimum() -> None:
    assert set(settled(rule(0.5, length=AdaptiveLength(min=2)), 0.1)) == {2}


def test_adaptive_follows_a_change() -> None:
    asked = rule(0.1, length=AdaptiveLength(half_life=32))
    good, bad = settled(asked, 0.9), settled(asked, 0.1)
    assert sum(good) / len(good) > 4
    assert sum(bad) / len(bad) < 1
