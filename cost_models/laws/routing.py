"""The number of experts that a GPU reads and of (token, expert) pairs that it computes, by the tokens' choices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cost_models.errors import CostModelError
from cost_models.roofline.operands import Experts, Floats

#: Number of random placements of experts on GPUs over which the load of the busiest GPU is averaged, and their seed.
_PLACEMENTS, _SEED = 16, 1


@dataclass(frozen=True, slots=True)
class Routing:
    """The tokens' choice of experts.

    `exponent` 0: every expert is equally likely. Above 0: the experts' shares of the tokens are distributed as
    x^-exponent over 1 to 0.8 x tokens (0.01 to 2 while there are fewer pairs than experts), as in the rows of
    aiconfigurator's kernel timings that are called `power_law_<exponent>` (collector/helper.py,
    ai-dynamo/aiconfigurator).

    `even`: tokens are assigned evenly, as in those measurements, so that as many experts are used as the shares allow.
    Otherwise each token draws independently, as in serving; below about ten tokens fewer experts are used.

    Raises CostModelError for a negative exponent.
    """

    exponent: float = 0.0
    even: bool = False

    def __post_init__(self) -> None:
        if not self.exponent >= 0:
            raise CostModelError(f"routing exponent: expected 0 (every expert equally likely) or more: {self.exponent}")


#: Tokens draw independently, and every expert is equally likely: the assumption for serving if no more is known.
UNIFORM = Routing()
#: The routing of the balanced rows of kernel timings.
EVEN = Routing(even=True)


class Load(NamedTuple):
    """Load of the busiest GPU for each number of tokens: its experts in use (`touched`), and its (token, expert)
    `pairs`."""

    touched: Floats
    pairs: Floats


def load(experts: Experts, tokens: Floats, expert_parallel: int, routing: Routing) -> Load:
    """Return the load of `tokens` > 0 whose `experts` are shared by `expert_parallel` GPUs.

    Raises CostModelError if the GPUs cannot share the experts.
    """
    if expert_parallel < 1 or experts.experts % expert_parallel:
        raise CostModelError(f"expert_parallel {expert_parallel} does not divide the {experts.experts} experts")
    if routing.exponent:
        return _skewed(experts, tokens, expert_parallel, routing)
    pairs = experts.top_k * tokens
    touched = np.minimum(experts.experts, pairs) if routing.even else experts.touched(tokens)
    # Even for few tokens one GPU has a pair, and the others wait for it.
    return Load(np.maximum(touched / expert_parallel, 1.0), np.maximum(pairs / expert_parallel, 1.0))


def _skewed(experts: Experts, tokens: Floats, expert_parallel: int, routing: Routing) -> Load:
    generator = np.random.Generator(np.random.PCG64(_SEED))
    placements = [generator.permutation(experts.experts) for _ in range(_PLACEMENTS if expert_parallel > 1 else 1)]
    touched, pairs = np.zeros(len(tokens)), np.zeros(len(tokens))
    for index, count in enumerate(tokens.tolist()):
        shares = _shares(experts.experts, experts.top_k, count, routing.exponent)
        used = np.minimum(1.0, shares) if routing.even else _drawn(shares, count)
        for placement in placements:
            gpus = shares[placement].reshape(expert_parallel, -1).sum(axis=1)
            busiest = int(gpus.argmax())
            pairs[index] += gpus[busiest] / len(placements)
            touched[index] += used[placement].reshape(expert_parallel, -1)[busiest].sum() / len(placements)
    return Load(touched, pairs)


def _shares(experts: int, top_k: int, tokens: float, exponent: float) -> Floats:
    """Return the tokens of each expert: quantiles of the power law, at most all `tokens` each, `top_k` x `tokens` in
    all."""
    low, high = (1.0, max(1.0, 0.8 * tokens)) if tokens * top_k > experts else (0.01, 2.0)
    shares = np.array([_quantile((rank + 0.5) / experts, low, high, exponent) for rank in range(experts)])
    full = np.zeros(experts, dtype=bool)
    while not full.all():
        shares[~full] *= tokens * (top_k - full.sum()) / shares[~full].sum()
        over = ~full & (shares > tokens)
        if not over.any():
            break
        full |= over
        shares[full] = tokens
    return shares


def _quantile(share: float, low: float, high: float, exponent: float) -> float:
    """Return the quantile at `share` of a density proportional to x^-exponent from `low` to `high`."""
    power = 1 - exponent
    if abs(power) < 1e-9:
        return low * math.pow(high / low, share)
    first, last = math.pow(low, power), math.pow(high, power)
    return math.pow(first + (last - first) * share, 1 / power)


def _drawn(shares: Floats, tokens: float) -> Floats:
    """Return the probability that an expert is used at all when each of `tokens` draws it with its share."""
    return np.array([1 - (1 - min(1.0, share / tokens)) ** tokens for share in shares.tolist()])
