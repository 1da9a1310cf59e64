"""Closed forms of speculative decoding: tokens a step, speed-up, and the best number of drafts.

A step that verifies k drafts produces a token for each accepted draft, and one more: the correction of the first
rejected draft, or the bonus token after the last one. `cumulative[i - 1]` is the probability that drafts 1 to i are all
accepted, as vLLM prints it for each position; `conditional[i - 1]` is that of draft i given those before it.

Sources: Leviathan et al., Fast Inference from Transformers via Speculative Decoding, arXiv 2211.17192 (iid acceptance:
their equation 1, theorems 3.8 and 3.11); for acceptance by position, the same sums without the assumption of iid.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence


def expected_tokens(cumulative: Sequence[float]) -> float:
    """Return the mean tokens of a step, the acceptance length: 1 + the sum of the cumulative rates."""
    return 1 + math.fsum(cumulative)


def iid_cumulative(alpha: float, k: int) -> tuple[float, ...]:
    """Return the cumulative rates of `k` drafts, each accepted with probability `alpha` if those before it were."""
    return tuple(alpha**position for position in range(1, k + 1))


def conditional_rates(cumulative: Sequence[float]) -> tuple[float, ...]:
    """Return the rate of each position among the steps that accepted all drafts before it; 0 if there are none."""
    before = (1.0, *cumulative[:-1])
    return tuple(rate / reached if reached else 0.0 for rate, reached in zip(cumulative, before, strict=True))


def cumulative_rates(conditional: Sequence[float]) -> tuple[float, ...]:
    """Return the cumulative rates of conditional ones: their running products."""
    return tuple(itertools.accumulate(conditional, operator.mul))


def token_pmf(cumulative: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities that a step produces 1, 2, ..., k + 1 tokens."""
    reached = (1.0, *cumulative, 0.0)
    return tuple(earlier - later for earlier, later in itertools.pairwise(reached))


def speed_up(expected: float, k: int, draft_cost: float) -> float:
    """Return the speed-up against steps without drafts, if verifying `k` drafts takes no longer than such a step.

    `draft_cost` is the time of one pass of the drafter as a share of that of the target (c in Leviathan et al.).
    """
    return expected / (1 + k * draft_cost)


def best_length(alpha: float, draft_cost: float, most: int) -> int:
    """Return the number of drafts, 0 to `most`, with the highest speed-up under iid acceptance; the smallest of equals.

    It is above 0 only if `alpha > draft_cost` (corollary 3.9): one draft then costs less than it gains.
    """
    return max(range(most + 1), key=lambda k: speed_up(expected_tokens(iid_cumulative(alpha, k)), k, draft_cost))


def operations_factor(alpha: float, k: int, draft_operations: float = 0.0) -> float:
    """Return the arithmetic operations a token, as a multiple of those without speculation, under iid acceptance.

    `draft_operations` are the drafter's for a token as a share of the target's (theorem 3.11). The factor exceeds 1
    because of rejected tokens.
    """
    return (k * draft_operations + k + 1) / expected_tokens(iid_cumulative(alpha, k))


def equivalent_alpha(expected: float, k: int) -> float:
    """Return the alpha of iid acceptance that gives `expected` tokens a step with `k` drafts, found by bisection.

    Raises ValueError if `expected` is below 1 or above k + 1.
    """
    if not 1 <= expected <= k + 1:
        raise ValueError(f"a step of {k} drafts produces 1 to {k + 1} tokens, not {expected:g}")
    low, high = 0.0, 1.0
    for _ in range(60):  # each halves the interval, to the precision of doubles
        middle = (low + high) / 2
        if expected_tokens(iid_cumulative(middle, k)) < expected:
            low = middle
        else:
            high = middle
    return high
