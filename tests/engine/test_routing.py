"""Routers in every design: each choice is that of a comparison of all loads, though counts fall in many ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from cost_models import FrontEnd
from simulator.common.shipped import file_finder
from simulator.deployment.acceptance import with_acceptance
from simulator.deployment.resolve import resolve
from simulator.engine.simulation import Controls, simulate
from simulator.results.columns import ReplicaState
from simulator.results.integrity import check
from simulator.routing import Arrival, Load, Router, loads, routers
from simulator.scenario import Scenario, parse_scenario
from tests.engine.test_prefix_caching import shared_table
from tests.engine.test_withdrawals import DESIGNS, LINKS, MS
from tests.helpers import PLACEHOLDER

KEYS: dict[str, Callable[[Load], int]] = {
    "least_requests": lambda load: load.requests,
    "least_tokens": lambda load: load.known_tokens,
    "least_waiting": lambda load: 4 * load.waiting + (load.requests - load.waiting),
}
REPLICAS = 4


class Compared:
    """A router whose choices are compared with those of a scan."""

    def __init__(self, router: Router, key: Callable[[Load], int], chosen: set[int]) -> None:
        self._router, self._key, self._chosen = router, key, chosen

    def choose(self, request: Arrival, loads: Sequence[Load]) -> Load:
        load = self._router.choose(request, loads)
        assert load is min(loads, key=self._key)
        self._chosen.add(load.number)
        return load


def design(name: str, policy: str) -> Scenario:
    """A design of the withdrawals' tests with several replicas of each pool."""
    deployment = dict(DESIGNS[name])
    model = deployment.pop("model", "llama-3.1-8b")
    deployment["pools"] = {role: pool | {"replicas": REPLICAS} for role, pool in deployment["pools"].items()}
    document = {"name": "t", "model": model, "workload": PLACEHOLDER, "links": LINKS, "deployment": deployment}
    return parse_scenario(json.dumps(document | {"router": {"policy": policy}}))


def disturb(controls: Controls, draw: np.random.Generator, end_ns: int) -> None:
    """Withdraw requests, and drain replicas and open them again, at random moments; the first replica stays open."""
    clock, replicas = controls.clock, controls.cluster.replicas

    def withdraw(_: object) -> None:
        held = list(controls.lifecycle._held)
        if held:
            controls.lifecycle.withdraw(held[int(draw.integers(len(held)))])

    def turn(_: object) -> None:
        number = int(draw.integers(len(replicas)))
        if number % REPLICAS:
            is_up = replicas[number].state is ReplicaState.UP
            replicas[number].change(ReplicaState.DRAINING if is_up else ReplicaState.UP, clock)

    for _ in range(60):
        clock.at(int(draw.integers(end_ns)), withdraw)
        clock.at(int(draw.integers(end_ns)), turn)


@pytest.mark.parametrize("policy", KEYS)
@pytest.mark.parametrize("name", DESIGNS)
def test_choices_are_those_of_a_scan(monkeypatch: pytest.MonkeyPatch, name: str, policy: str) -> None:
    chosen: set[int] = set()
    monkeypatch.setattr(loads, "_FEW", 1)  # a heap for these few replicas, too
    asked = design(name, policy)
    build, key = routers._BUILDERS[policy], KEYS[policy]
    monkeypatch.setitem(routers._BUILDERS, policy, lambda *settings: Compared(build(*settings), key, chosen))
    for seed, delay_ns in ((0, 0), (1, 4 * MS)):
        table = shared_table(seed, 240, 4e6, 200, 60, 10)
        resolved = with_acceptance(resolve(asked), asked, table, file_finder(None))
        services = [service._replace(front_end=FrontEnd(request_ns=delay_ns)) for service in resolved.services]
        draw, end_ns = np.random.default_rng(seed), int(table.arrival_ns[-1])
        record = simulate(asked, table, services, control=partial(disturb, draw=draw, end_ns=end_ns))
        check(record)
    assert len(chosen) >= REPLICAS
