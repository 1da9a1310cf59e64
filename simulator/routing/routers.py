"""The built-in routers. Each sees the fleet's load at the moment of the choice and answers with a replica's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from simulator.common.randomness import stream
from simulator.scenario import routers


class Fleet(Protocol):
    """What a router may look at."""

    #: Unfinished requests of each replica.
    requests: list[int]

    def known_tokens(self, replica: int) -> int:
        """Prompt tokens and delivered output tokens of a replica's unfinished requests."""

    def waiting(self, replica: int) -> int:
        """Unfinished requests of a replica that are not running."""


class Arrival(Protocol):
    """What a router may know of the request that it places."""

    @property
    def index(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class Router(Protocol):
    """Chooses a replica for the next request."""

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        """The number of the replica."""


class RoundRobin:
    """Replicas in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        chosen = self._next % len(fleet.requests)
        self._next = chosen + 1
        return chosen


class RandomChoice:
    """Any replica, with equal probability."""

    def __init__(self, draws: Iterator[float]) -> None:
        self._draws = draws

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        return int(next(self._draws) * len(fleet.requests))


class LeastRequests:
    """The fewest unfinished requests; the first of equals."""

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        requests = fleet.requests
        return requests.index(min(requests))


class LeastTokens:
    """The fewest tokens known so far of unfinished requests; the first of equals."""

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        return min(range(len(fleet.requests)), key=fleet.known_tokens)


class LeastWaiting:
    """The lowest 4 x waiting + running requests; the first of equals.

    vLLM's load balancer of data-parallel ranks (vllm/v1/engine/core_client.py: `DPLBAsyncMPClient`). It sees what ranks
    publish every 100 ms, and what it has sent since; here the counts are those of the moment.
    """

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        requests, waiting = fleet.requests, fleet.waiting
        return min(range(len(requests)), key=lambda replica: requests[replica] + 3 * waiting(replica))


class PowerOfD:
    """Of d different replicas at random, the one with the fewest unfinished requests; the first drawn of equals.

    Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """

    def __init__(self, d: int, draws: Iterator[float]) -> None:
        self._d = d
        self._draws = draws

    def choose(self, request: Arrival, fleet: Fleet) -> int:
        drawn: list[int] = []
        replicas = len(fleet.requests)
        while len(drawn) < min(self._d, replicas):
            candidate = int(next(self._draws) * replicas)
            if candidate not in drawn:
                drawn.append(candidate)
        return min(drawn, key=fleet.requests.__getitem__)


_BUILDERS: dict[str, Callable[[Any, Iterator[float]], Router]] = {
    "round_robin": lambda settings, draws: RoundRobin(),
    "random": lambda settings, draws: RandomChoice(draws),
    "least_requests": lambda settings, draws: LeastRequests(),
    "least_tokens": lambda settings, draws: LeastTokens(),
    "least_waiting": lambda settings, draws: LeastWaiting(),
    "power_of_d": lambda settings, draws: PowerOfD(settings.d, draws),
}


def build_router(settings: routers.Router, seed: int, name: str = "router") -> Router:
    """The router that the scenario names; `name` is that of its random stream."""
    return _BUILDERS[settings.TAG](settings, _uniform(seed, name))


def _uniform(seed: int, name: str) -> Iterator[float]:
    """Endless random numbers from 0 to just below 1, drawn in blocks: a scalar draw costs a microsecond."""
    generator = stream(seed, name)
    while True:
        yield from generator.random(4096).tolist()
