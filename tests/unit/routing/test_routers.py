"""Routers, on loads made of lists."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from simulator.routing import Least, OpenLoads, Router, build_router
from simulator.scenario import routers
from simulator.scheduling import SequenceState

REQUEST = SequenceState(0, 100, 10)


@dataclass(frozen=True)
class Load:
    number: int
    requests: int
    known_tokens: int = 0
    waiting: int = 0


def loads(requests: list[int], tokens: list[int] | None = None, waiting: list[int] | None = None) -> list[Load]:
    """Return the loads of engine cores 0, 1, ..."""
    count = len(requests)
    columns = (range(count), requests, tokens or [0] * count, waiting or [0] * count)
    return [Load(*each) for each in zip(*columns, strict=True)]


def choices(router: Router, among: list[Load], count: int = 1) -> list[int]:
    """Return the numbers of the cores chosen for `count` requests."""
    return [router.choose(REQUEST, among).number for _ in range(count)]


def test_round_robin_takes_turns() -> None:
    router = build_router(routers.RoundRobin(), 0)
    assert choices(router, loads([9, 0, 0]), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_least_requests_takes_the_first_of_equals() -> None:
    router = build_router(routers.LeastRequests(), 0)
    assert choices(router, loads([3, 1, 2, 1])) == [1]


def test_least_tokens_counts_tokens_and_not_requests() -> None:
    router = build_router(routers.LeastTokens(), 0)
    assert choices(router, loads([1, 5, 2], [900, 30, 30])) == [1]


@pytest.mark.parametrize(
    ("requests", "waiting", "chosen"),
    [
        ([5, 5], [0, 0], 0),
        ([5, 4], [0, 0], 1),
        ([5, 4], [0, 1], 0),  # 5 running, against 3 running and 4 for the one that waits
        ([7, 4], [0, 1], 0),  # 7 against 7: the first of equals
        ([8, 4], [0, 1], 1),
    ],
)
def test_least_waiting_counts_a_waiting_request_as_four(requests: list[int], waiting: list[int], chosen: int) -> None:
    router = build_router(routers.LeastWaiting(), 0)
    assert choices(router, loads(requests, waiting=waiting)) == [chosen]


def test_random_is_even_and_depends_on_the_seed_alone() -> None:
    among = loads([0] * 4)
    draws = {}
    for seed in (1, 2):
        router = build_router(routers.RandomRouter(), seed)
        draws[seed] = choices(router, among, 8000)
    again = build_router(routers.RandomRouter(), 1)
    assert choices(again, among, 8000) == draws[1] != draws[2]
    # A standard deviation is 39; four of them on each side.
    assert all(2000 - 156 < count < 2000 + 156 for count in Counter(draws[1]).values())


@pytest.mark.parametrize("d", [1, 2, 3, 8, 20])
def test_power_of_d_looks_at_d_different_replicas(d: int) -> None:
    router = build_router(routers.PowerOfD(d), 3)
    among = loads([7, 6, 5, 4, 3, 2, 1, 0])
    chosen = Counter(choices(router, among, 4000))
    looked_at = min(d, 8)
    # The best of k out of 8 different ones is replica 7 with probability k / 8, and never one of the k - 1 worst.
    assert abs(chosen[7] / 4000 - looked_at / 8) < 0.035
    assert min(chosen) >= looked_at - 1


def test_round_robin_goes_on_behind_the_last_core_when_cores_come_and_go() -> None:
    router, three = build_router(routers.RoundRobin(), 0), loads([0, 0, 0])
    assert choices(router, three, 2) == [0, 1]
    assert choices(router, [three[0], three[2]], 2) == [2, 0]
    assert choices(router, three, 2) == [1, 2]


@dataclass(eq=False)
class Changing:
    """A load whose counts change."""

    number: int
    requests: int = 0
    known_tokens: int = 0
    waiting: int = 0


POLICIES: list[routers.Router] = [
    routers.RoundRobin(),
    routers.RandomRouter(),
    routers.LeastRequests(),
    routers.LeastTokens(),
    routers.LeastWaiting(),
    routers.PowerOfD(2),
]


@pytest.mark.parametrize("settings", POLICIES, ids=lambda settings: settings.TAG)
@pytest.mark.parametrize("cores", [1, 5, 30, 300])
def test_choices_among_open_loads_are_those_among_a_plain_list(settings: routers.Router, cores: int) -> None:
    """Counts rise untold and fall told, of closed cores, too; cores close and open; equals are common."""
    draw = random.Random(cores)
    every = [Changing(number) for number in range(cores)]
    is_open = [True] * cores
    among, followed, plain = OpenLoads(every), build_router(settings, 5), build_router(settings, 5)
    chosen = Counter[int]()
    for _ in range(6000):
        load = draw.choice(every)
        event = draw.random()
        if event < 0.4:
            load.known_tokens += draw.randrange(3)
        elif event < 0.5:
            load.waiting += 1
        elif event < 0.7:
            load.requests = draw.randint(0, load.requests)
            load.known_tokens = draw.randint(0, load.known_tokens)
            load.waiting = draw.randint(0, load.waiting)
            among.fell(load)
        elif event < 0.71:
            is_open[load.number] = not is_open[load.number] or load.number == 0
            among = OpenLoads([each for each in every if is_open[each.number]])
        else:
            found = followed.choose(REQUEST, among)
            assert found is plain.choose(REQUEST, list(among))
            found.requests += 1
            found.known_tokens += draw.randrange(4)
            chosen[found.number] += 1
    assert len(chosen) >= 0.9 * cores


def test_a_heap_does_not_grow_with_the_loads_that_fall() -> None:
    """A load far above the least falls again and again, and never comes to the top."""
    among = OpenLoads([Changing(number, requests=number and 10**6) for number in range(20)])
    least = Least(lambda load: load.requests)
    for _ in range(10_000):
        among[7].requests -= 1
        among.fell(among[7])
        assert least.of(among) is among[0]
    assert len(least._heap) <= 4 * 20
