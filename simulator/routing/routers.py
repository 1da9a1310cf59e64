"""The built-in routers. Each sees the fleet's load at the moment of the choice and answers with a replica's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from simulator.randomness import stream
from simulator.scenario import schema


class Fleet(Protocol):
    """What a router may look at."""

    #: Unfinished requests of each replica.
    requests: list[int]

    def known_tokens(self, replica: int) -> int:
        """Prompt tokens and delivered output tokens of a replica's unfinished requests."""


class Router(Protocol):
    """Chooses a replica for the next request."""

    def choose(self, fleet: Fleet) -> int:
        """The number of the replica."""


class RoundRobin:
    """Replicas in turn."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = 0

    def choose(self, fleet: Fleet) -> int:
        chosen = self._next
        self._next = chosen + 1 if chosen + 1 < self._replicas else 0
        return chosen


class RandomChoice:
    """Any replica, with equal probability."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._draws = _integers(seed, replicas)

    def choose(self, fleet: Fleet) -> int:
        return next(self._draws)


class LeastRequests:
    """The fewest unfinished requests; the first of equals."""

    def choose(self, fleet: Fleet) -> int:
        requests = fleet.requests
        return requests.index(min(requests))


class LeastTokens:
    """The fewest tokens known so far of unfinished requests; the first of equals."""

    def choose(self, fleet: Fleet) -> int:
        return min(range(len(fleet.requests)), key=fleet.known_tokens)


class PowerOfD:
    """Of d different replicas at random, the one with the fewest unfinished requests; the first drawn of equals.

    Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """

    def __init__(self, replicas: int, d: int, seed: int) -> None:
        self._d = min(d, replicas)
        self._draws = _integers(seed, replicas)

    def choose(self, fleet: Fleet) -> int:
        drawn: list[int] = []
        while len(drawn) < self._d:
            candidate = next(self._draws)
            if candidate not in drawn:
                drawn.append(candidate)
        return min(drawn, key=fleet.requests.__getitem__)


_BUILDERS: dict[str, Callable[[Any, int, int], Router]] = {
    "round_robin": lambda settings, replicas, seed: RoundRobin(replicas),
    "random": lambda settings, replicas, seed: RandomChoice(replicas, seed),
    "least_requests": lambda settings, replicas, seed: LeastRequests(),
    "least_tokens": lambda settings, replicas, seed: LeastTokens(),
    "power_of_d": lambda settings, replicas, seed: PowerOfD(replicas, settings.d, seed),
}


def build_router(settings: schema.Router, replicas: int, seed: int) -> Router:
    """The router that the scenario names, for `replicas` replicas."""
    return _BUILDERS[settings.TAG](settings, replicas, seed)


def _integers(seed: int, below: int) -> Iterator[int]:
    """Endless random integers from 0 to `below` - 1, drawn in blocks: a scalar draw costs a microsecond."""
    generator = stream(seed, "router")
    while True:
        yield from generator.integers(below, size=4096).tolist()
