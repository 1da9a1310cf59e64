"""What a design's answers are: from which law their tokens come, and how many there may be.

Designs that differ in this do not do the same work: a rule that accepts wrong drafts looks like speed, and so does a
shorter answer. A comparison refuses them, unless it is told to accept the difference, which it then shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.errors import InputError
from simulator.scenario import Scenario
from simulator.scenario.schema import Pool
from simulator.speculation.quality import quality_of
from simulator.workload import RequestTable

#: The columns of requests, and the keys of a workload, that say how long answers are and may be.
BUDGETS = ("output_tokens", "max_tokens")
#: The way out that errors name.
ACCEPT = "accept the difference with --mixed-decoding"


@dataclass(frozen=True, slots=True)
class Decoding:
    """`law` says in words whether tokens come from the target's law, and how far off it they are if not.

    `output_tokens` and `max_tokens` are sums over the requests of the first seed.
    """

    law: str
    output_tokens: int
    max_tokens: int


def is_budget(key: str) -> bool:
    """Whether a dotted key of a scenario says how long answers are or may be."""
    first, *rest = key.split(".")
    return first == "workload" and not set(BUDGETS).isdisjoint(rest)


def check_laws(scenarios: Sequence[Scenario]) -> None:
    """Verify that all answer from the same law.

    Raises:
        InputError: one accepts drafts by a rule that changes the output, and another does not, or by another rule.
    """
    laws = [_law(scenario) for scenario in scenarios]
    for scenario, law in zip(scenarios[1:], laws[1:], strict=True):
        if law != laws[0]:
            raise InputError(
                f"speculation.verification: output is {law} in {scenario.name}, {laws[0]} in {scenarios[0].name}; what "
                f"is compared must answer from the same law: give all the same rule, or {ACCEPT}"
            )


def mixed(scenarios: Sequence[Scenario], tables: Sequence[RequestTable], accepted: bool) -> dict[str, Decoding] | None:
    """What each scenario's answers are, by its name, if that is accepted not to be the same, and is not; else None."""
    if not accepted:
        return None
    laws = [_law(scenario) for scenario in scenarios]
    alike = all(np.array_equal(getattr(table, name), getattr(tables[0], name)) for table in tables for name in BUDGETS)
    if alike and len(set(laws)) == 1:
        return None
    sums = [[int(np.sum(getattr(table, name), dtype=np.int64)) for name in BUDGETS] for table in tables]
    return {scenario.name: Decoding(law, *own) for scenario, law, own in zip(scenarios, laws, sums, strict=True)}


def _law(scenario: Scenario) -> str:
    return " and ".join(sorted({_of(pool) for pool in scenario.deployment.pools.values()}))


def _of(pool: Pool) -> str:
    """Without speculation, and with rules that keep it, it is the target's: exact."""
    if pool.speculation is None:
        return "exact"
    verification = pool.speculation.verification
    quality = quality_of(verification)
    if quality.kind == "exact":
        return "exact"
    return f"approximate ({verification.rule}, total variation {quality.total_variation:.3g})"
