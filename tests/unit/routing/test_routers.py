"""Routers, on a fleet made of lists."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.routing import build_router
from simulator.scenario import routers
from simulator.scheduling import SequenceState

REQUEST = SequenceState(0, 100, 10)


class Fleet:
    def __init__(self, requests: list[int], tokens: list[int] | None = None, waiting: list[int] | None = None) -> None:
        self.requests = requests
        self.queued = waiting or [0] * len(requests)
        self.tokens = tokens or [0] * len(requests)

    def known_tokens(self, replica: int) -> int:
        return self.tokens[replica]

    def waiting(self, replica: int) -> int:
        return self.queued[replica]


def test_round_robin_takes_turns() -> None:
    router = build_router(routers.RoundRobin(), 0)
    assert [router.choose(REQUEST, Fleet([9, 0, 0])) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_requests_takes_the_first_of_equals() -> None:
    router = build_router(routers.LeastRequests(), 0)
    assert router.choose(REQUEST, Fleet([3, 1, 2, 1])) == 1


def test_least_tokens_counts_tokens_and_not_requests() -> None:
    router = build_router(routers.LeastTokens(), 0)
    assert router.choose(REQUEST, Fleet([1, 5, 2], [900, 30, 30])) == 1


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
    assert router.choose(REQUEST, Fleet(requests, waiting=waiting)) == chosen


def test_random_is_even_and_depends_on_the_seed_alone() -> None:
    fleet = Fleet([0] * 4)
    draws = {}
    for seed in (1, 2):
        router = build_router(routers.RandomRouter(), seed)
        draws[seed] = [router.choose(REQUEST, fleet) for _ in range(8000)]
    again = build_router(routers.RandomRouter(), 1)
    assert [again.choose(REQUEST, fleet) for _ in range(8000)] == draws[1] != draws[2]
    # A standard deviation is 39; four of them on each side.
    assert all(2000 - 156 < count < 2000 + 156 for count in Counter(draws[1]).values())


@pytest.mark.parametrize("d", [1, 2, 3, 8, 20])
def test_power_of_d_looks_at_d_different_replicas(d: int) -> None:
    router = build_router(routers.PowerOfD(d), 3)
    fleet = Fleet([7, 6, 5, 4, 3, 2, 1, 0])
    chosen = Counter(router.choose(REQUEST, fleet) for _ in range(4000))
    looked_at = min(d, 8)
    # The best of k out of 8 different ones is replica 7 with probability k / 8, and never one of the k - 1 worst.
    assert abs(chosen[7] / 4000 - looked_at / 8) < 0.035
    assert min(chosen) >= looked_at - 1
