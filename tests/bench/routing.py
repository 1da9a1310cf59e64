"""Time of routing a request, by router and number of replicas: `python -m tests.bench.routing`."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any, cast

from simulator.common.garbage import no_garbage_collection
from simulator.engine.routing_group import RoutingGroup
from simulator.routing import build_router
from simulator.scenario import routers

POLICIES: tuple[routers.Router, ...] = (
    routers.RoundRobin(),
    routers.RandomRouter(),
    routers.LeastRequests(),
    routers.LeastTokens(),
    routers.LeastWaiting(),
    routers.PowerOfD(),
)
REPLICAS = (1, 16, 100, 1000)
_IN_FLIGHT = 6  # requests of a replica
_STEPS = 12  # steps of some replica between two requests


class Core:
    """An engine core without an engine: the counts that routers see."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting = self.known_tokens = 0


@no_garbage_collection()
def routing_us(settings: routers.Router, replicas: int, requests: int = 10_000) -> float:
    """Return the median time of placing a request, noting that it runs, and counting it out, in us.

    Beside this, tokens become known at random cores, and each request that is placed ends another one. Requests are
    timed when all that were placed first have ended.
    """
    group, draw = RoutingGroup(build_router(settings, 0)), random.Random(0)
    cores: list[Any] = [Core(number) for number in range(replicas)]
    for core in cores:
        group.add(core, lambda index: cast("Any", index))
    placed = [cast("Any", group.place(index))[0].core for index in range(_IN_FLIGHT * replicas)]
    for core in placed:
        core.known_tokens += draw.randrange(200, 3000)
    times: list[float] = []
    for index in range(-2 * len(placed), requests):
        for _ in range(_STEPS):
            cores[draw.randrange(replicas)].known_tokens += 6
        at, tokens = draw.randrange(len(placed)), draw.randrange(200, 3000)
        started = time.perf_counter()
        load, _ = cast("Any", group.place(index))
        spent = time.perf_counter() - started
        core = load.core
        core.known_tokens += tokens
        started = time.perf_counter()
        group.load_fell(core)
        spent += time.perf_counter() - started
        ended, placed[at] = placed[at], core
        ended.known_tokens -= min(ended.known_tokens, tokens)
        started = time.perf_counter()
        group.count_out(ended)
        if index >= 0:
            times.append(spent + time.perf_counter() - started)
    return statistics.median(times) * 1e6


def main() -> None:
    print("us a request; replicas:", *REPLICAS)
    for settings in POLICIES:
        times = [min(routing_us(settings, replicas) for _ in range(5)) for replicas in REPLICAS]
        print(f"{settings.TAG:15}", *(f"{time_us:6.2f}" for time_us in times))


if __name__ == "__main__":
    main()
