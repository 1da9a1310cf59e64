"""Routers in a scenario: the choice of the replica for the next request."""

from __future__ import annotations

from typing import Annotated, ClassVar

from simulator.scenario.field_types import Tagged
from simulator.scenario.quantities import Range
from simulator.scenario.setting import setting


@setting()
class RandomRouter:
    """A replica at random for each request."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "random"


@setting()
class RoundRobin:
    """Replicas in turn."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "round_robin"


@setting()
class LeastRequests:
    """The replica with the fewest unfinished requests; the first if several have."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_requests"


@setting()
class LeastTokens:
    """The replica whose unfinished requests have the fewest known tokens; the first if several have."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_tokens"


@setting()
class PowerOfD:
    """The replica with the fewest unfinished requests among `d` different ones chosen at random."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "power_of_d"
    d: Annotated[int, Range(min=1, max=10**5)] = 2


@setting()
class LeastWaiting:
    """The replica with the lowest 4 x waiting + running requests; the first if several have."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_waiting"


Router = Annotated[
    RoundRobin | RandomRouter | LeastRequests | LeastTokens | PowerOfD | LeastWaiting, Tagged("policy", "round_robin")
]
