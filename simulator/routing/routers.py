"""The built-in routers, which choose one of the open engine cores by their current loads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Protocol

from simulator.common.randomness import stream
from simulator.routing.loads import L, Least
from simulator.scenario import routers

_number = attrgetter("number")
_requests = attrgetter("requests")


class Arrival(Protocol):
    """Data of a request that a router may use."""

    @property
    def index(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class Router(Protocol):
    """A router of requests to engine cores.

    `uses_loads` is False if the choice depends only on the requests and on the numbers of the open cores.
    """

    uses_loads: ClassVar[bool]

    def choose(self, request: Arrival, loads: Sequence[L]) -> L | None:
        """Return one of `loads`, at least one `Load` in order of numbers; None refuses the request."""


class RoundRobin:
    """Router that chooses engine cores in turn."""

    uses_loads: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last = -1  # number of the last chosen core

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        at = bisect_right(loads, self._last, key=_number)
        chosen = loads[at] if at < len(loads) else loads[0]
        self._last = chosen.number
        return chosen


class RandomChoice:
    """Router that chooses every engine core with equal probability."""

    uses_loads: ClassVar[bool] = False

    def __init__(self, draws: Iterator[float]) -> None:
        self._draws = draws

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        return loads[int(next(self._draws) * len(loads))]


class LeastRequests:
    """Router that chooses the core with the fewest unfinished requests; the first of equals."""

    uses_loads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._least = Least(_requests)

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        return self._least.of(loads)


class LeastTokens:
    """Router that chooses the core with the fewest known tokens of unfinished requests; the first of equals."""

    uses_loads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._least = Least(attrgetter("known_tokens"))

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        return self._least.of(loads)


class LeastWaiting:
    """Router that chooses the core with the lowest 4 x waiting + running requests; the first of equals.

    It is vLLM's load balancer of data-parallel ranks (vllm/v1/engine/core_client.py: `DPLBAsyncMPClient`). vLLM uses
    counts that the ranks publish every 100 ms, with its own requests since then; here the counts are current.
    """

    uses_loads: ClassVar[bool] = True

    def __init__(self) -> None:
        self._least = Least(lambda load: load.requests + 3 * load.waiting)

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        return self._least.of(loads)


class PowerOfD:
    """Router that draws d different engine cores and chooses the one with the fewest unfinished requests.

    Of equals, it chooses the one drawn first.

    Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """

    uses_loads: ClassVar[bool] = True

    def __init__(self, d: int, draws: Iterator[float]) -> None:
        self._d = d
        self._draws = draws

    def choose(self, request: Arrival, loads: Sequence[L]) -> L:
        drawn: list[L] = []
        while len(drawn) < min(self._d, len(loads)):
            candidate = loads[int(next(self._draws) * len(loads))]
            if candidate not in drawn:
                drawn.append(candidate)
        return min(drawn, key=_requests)


_BUILDERS: dict[str, Callable[[Any, Iterator[float]], Router]] = {
    "round_robin": lambda settings, draws: RoundRobin(),
    "random": lambda settings, draws: RandomChoice(draws),
    "least_requests": lambda settings, draws: LeastRequests(),
    "least_tokens": lambda settings, draws: LeastTokens(),
    "least_waiting": lambda settings, draws: LeastWaiting(),
    "power_of_d": lambda settings, draws: PowerOfD(settings.d, draws),
}


def build_router(settings: routers.Router, seed: int, name: str = "router") -> Router:
    """Build the router of the scenario's settings; `name` is that of its random stream."""
    return _BUILDERS[settings.TAG](settings, _uniform(seed, name))


def _uniform(seed: int, name: str) -> Iterator[float]:
    """Yield random numbers in [0, 1) without end, drawn in blocks, since a scalar draw takes a microsecond."""
    generator = stream(seed, name)
    while True:
        yield from generator.random(4096).tolist()
