"""Routers in a scenario: the choice of the replica for the next request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from simulator.scenario.field_types import Tagged
from simulator.scenario.quantities import Range


@dataclass(frozen=True, slots=True)
class RandomRouter:
    """Each request to a replica at random."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "random"


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Replicas in turn."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "round_robin"


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """The replica with the fewest unfinished requests; the first of equals."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_requests"


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """The replica whose unfinished requests have the fewest tokens known so far; the first of equals."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_tokens"


@dataclass(frozen=True, slots=True)
class PowerOfD:
    """Of `d` different replicas at random, the one with the fewest unfinished requests."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "power_of_d"
    d: Annotated[int, Range(min=1, max=10**5)] = 2


@dataclass(frozen=True, slots=True)
class LeastWaiting:
    """The replica with the lowest 4 x waiting + running requests; the first of equals."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_waiting"


Router = Annotated[
    RoundRobin | RandomRouter | LeastRequests | LeastTokens | PowerOfD | LeastWaiting, Tagged("policy", "round_robin")
]
