"""Effect of a rule of verification on the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from simulator.scenario.speculation import Verification
from simulator.speculation.sampling import Law, output_law, total_variation

#: The reference pair's vocabulary, the exponent of its target's Zipf law, and the sum of min(p, q).
_VOCABULARY, _EXPONENT, _ALPHA = 1000, 2.0, 0.7


@dataclass(frozen=True, slots=True)
class Quality:
    """Effect of a rule on the output: `exact` if it keeps the target's law, else the total variation of a token's law
    from the target's, for the laws that `basis` describes."""

    kind: Literal["exact", "approximate"]
    total_variation: float
    basis: str


def quality_of(verification: Verification) -> Quality:
    """Return the quality of a run's rule: exact for speculative sampling, else the total variation for one token.

    It is for `verification.target` and `draft` if they are given, else for `reference_pair()`. The law of a text
    differs by more, since the deviations of its tokens add up.
    """
    if verification.rule == "rejection":
        return Quality("exact", 0.0, "speculative sampling keeps the target's law, whatever the distributions")
    if verification.target:
        basis = "one token of the scenario's target and draft"
        target, draft = (_normalised(law) for law in (verification.target, verification.draft))
    else:
        basis = (
            f"one token of a reference pair: a Zipf target (exponent {_EXPONENT:g}, {_VOCABULARY} tokens) and a draft "
            f"with the same most probable token and sum of min(p, q) {_ALPHA:g}; not measured on any model"
        )
        target, draft = reference_pair()
    return Quality("approximate", total_variation(output_law(target, draft, verification.rule), target), basis)


@cache
def reference_pair() -> tuple[Law, Law]:
    """Return example laws of a next token at temperature 1, for scenarios that give none: the target's and a draft's.

    The target's probabilities fall with the square of the rank, so that the most probable token has 0.61. The draft is
    a mixture w p + (1 - w) r of the target p and its mirror image r. Since the sum of min(p, q) is
    1 - (1 - w) TV(p, r), w follows from the acceptance `_ALPHA`.
    """
    ranks = np.arange(1, _VOCABULARY + 1, dtype=np.float64)
    target = _normalised(tuple(ranks**-_EXPONENT))
    mirrored = target[::-1]
    weight = 1 - (1 - _ALPHA) / total_variation(target, mirrored)
    return target, weight * target + (1 - weight) * mirrored


def _normalised(probabilities: tuple[float, ...]) -> Law:
    law: Law = np.asarray(probabilities) / math.fsum(probabilities)
    return law
