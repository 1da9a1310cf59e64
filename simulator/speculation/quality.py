"""Effect of a rule of verification on the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from simulator.scenario.speculation import Verification
from simulator.speculation.sampling import Law, output_law, total_variation

#: Of the reference pair: the vocabulary, the exponent of the target's Zipf law, and the sum of min(p, q).
_VOCABULARY, _EXPONENT, _ALPHA = 1000, 2.0, 0.7


@dataclass(frozen=True, slots=True)
class Quality:
    """Whether a rule keeps the target's law, and else how far from it a token's law is, on what `basis` names."""

    kind: Literal["exact", "approximate"]
    total_variation: float
    basis: str


def quality_of(verification: Verification) -> Quality:
    """The quality of a run's rule: exact for speculative sampling, else the total variation for one token.

    It is that of `verification.target` and `draft` if they are given, else of `reference_pair()`. The law of a text
    differs by more: each token's deviation adds to those before it.
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
    """Laws that stand for a next token at temperature 1 where a scenario gives none: the target's and a draft's.

    The target's probabilities fall with the square of the rank, so that the most probable token has 0.61. The draft is
    a mixture of the target and of its mirror image, w p + (1 - w) r: since min(p, q) adds up to 1 - (1 - w) TV(p, r),
    w follows from the acceptance that is wanted.
    """
    ranks = np.arange(1, _VOCABULARY + 1, dtype=np.float64)
    target = _normalised(tuple(ranks**-_EXPONENT))
    mirrored = target[::-1]
    weight = 1 - (1 - _ALPHA) / total_variation(target, mirrored)
    return target, weight * target + (1 - weight) * mirrored


def _normalised(probabilities: tuple[float, ...]) -> Law:
    law: Law = np.asarray(probabilities) / math.fsum(probabilities)
    return law
