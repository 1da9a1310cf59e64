"""The output distribution and the output lengths of a design.

Designs that differ in these do different work: a verification rule that accepts wrong drafts raises the speed, and so
do shorter answers. A comparison refuses such designs unless the difference is allowed, and then reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.errors import InputError
from simulator.scenario import Scenario
from simulator.scenario.schema import Pool
from simulator.speculation.quality import quality_of

if TYPE_CHECKING:
    from simulator.comparison.designs import Design
    from simulator.study.prepare import Prepared

#: The columns of requests, and the keys of a workload, that determine output lengths.
BUDGETS = ("output_tokens", "max_tokens")
#: Advice of errors on how to allow a difference.
ACCEPT = "accept the difference with --mixed-decoding"


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decoding of a design: `law` is `exact`, or `approximate` with its distance from the target's distribution.

    `output_tokens` and `max_tokens` are sums over the requests of the first seed.
    """

    law: str
    output_tokens: int
    max_tokens: int


def is_budget(key: str) -> bool:
    """Return whether a dotted key of a scenario determines output lengths."""
    first, *rest = key.split(".")
    return first == "workload" and not set(BUDGETS).isdisjoint(rest)


def check_laws(scenarios: Sequence[Scenario]) -> None:
    """Verify that the outputs of all scenarios follow the same distribution.

    Raises:
        InputError: one accepts drafts by a rule that changes the output, and another one does not, or by another rule.
    """
    laws = [_law(scenario) for scenario in scenarios]
    for scenario, law in zip(scenarios[1:], laws[1:], strict=True):
        if law != laws[0]:
            raise InputError(
                f"speculation.verification: output is {law} in {scenario.name}, {laws[0]} in {scenarios[0].name}; "
                f"compared designs must have the same output distribution: give all the same rule, or {ACCEPT}"
            )


def decodings_of(designs: Sequence[Design], prepared: Sequence[Prepared]) -> dict[str, Decoding] | None:
    """Return the decoding of each design by its name; None if all are the same."""
    laws, tables = [_law(design.scenario) for design in designs], [one.table for one in prepared]
    alike = all(np.array_equal(getattr(table, name), getattr(tables[0], name)) for table in tables for name in BUDGETS)
    if alike and len(set(laws)) == 1:
        return None
    sums = [[int(np.sum(getattr(table, name), dtype=np.int64)) for name in BUDGETS] for table in tables]
    return {design.name: Decoding(law, *own) for design, law, own in zip(designs, laws, sums, strict=True)}


def _law(scenario: Scenario) -> str:
    return " and ".join(sorted({_law_of_pool(pool) for pool in scenario.deployment.pools.values()}))


def _law_of_pool(pool: Pool) -> str:
    """Return `exact` without speculation and for rules that keep the target's distribution."""
    if pool.speculation is None:
        return "exact"
    verification = pool.speculation.verification
    quality = quality_of(verification)
    if quality.kind == "exact":
        return "exact"
    return f"approximate ({verification.rule}, total variation {quality.total_variation:.3g})"
