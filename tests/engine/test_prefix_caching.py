"""Prefix caching in O(changes): the lazy batch gives the results of the explicit one, and the same cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulator.engine.batches import build as parts
from simulator.memory import BlockPool, PrefixPool, build_pool, own_keys
from simulator.results.columns import Status
from simulator.results.record import RunRecord
from simulator.scenario.schedulers import VERSIONS
from simulator.scheduling import Limits
from simulator.workload.requests import RequestTable
from tests.engine.test_lazy_equals_explicit import (
    ORDERS,
    WindowLaw,
    assert_equal,
    every_way,
    random_table,
    with_priorities,
)


def shared_table(
    seed: int, requests: int, gap_ns: float, prompt: int, output: int, slack: int = 0, prompts: int = 0
) -> RequestTable:
    """Random requests, most of which start with one of three prefixes; of `prompts` distinct prompts if there are any.

    One in five prompts is its prefix to the end, and one in five has no prefix.
    """
    table = random_table(seed, requests, gap_ns, prompt, output, slack)
    draw = np.random.default_rng(seed + 1)
    prefix, part = draw.integers(0, 3, requests), draw.choice([0, 1, 2, 3, 5], requests) / 5
    lengths = table.prompt_tokens
    if prompts:
        which = draw.integers(0, min(prompts, requests), requests)
        prefix, part, lengths = prefix[which], part[which], lengths[which]
        table = dataclasses.replace(table, prompt_id=which.astype(np.int32), prompt_tokens=lengths)
    tokens = (lengths * part).astype(np.int32)
    return dataclasses.replace(table, prefix_id=prefix.astype(np.int32), prefix_tokens=tokens)


def pool_for(table: RequestTable, block_size: int, spare: int) -> int:
    """Return the number of blocks of the longest request, and `spare` more."""
    return -(-int((table.prompt_tokens + table.max_tokens).max()) // block_size) + spare


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[PrefixPool]:
    """Return the block pools of the replicas, in the order of their construction."""
    pools: list[PrefixPool] = []

    def build(limits: Limits, *arguments: Any) -> BlockPool:
        pools.append(build_pool(limits, *arguments))
        return pools[-1]

    for module in (parts,):
        monkeypatch.setattr(module, "build_pool", build)
    return pools


def contents(pool: PrefixPool, ended: NDArray[np.bool_]) -> list[int | str]:
    """Return the contents of the free blocks, in the order of their eviction.

    Content of an unfinished request is shown by its key; of the others only whether they have content, if it matters.
    """
    told: list[int | str] = []
    unhashed = set(pool._unhashed)
    for block in pool.free_list():
        key = pool._key.get(block, 0)
        if key < 0 or (key > 0 and not ended[key // own_keys(0, 0, 1)[0] - 1]):
            told.append(key)
        else:
            told.append("unhashed" if block in unhashed or block > pool._used else "nobody's")
    return told


def assert_every_way_equal(
    caches: list[PrefixPool], table: RequestTable, law: WindowLaw, blocks: int, **keys: Any
) -> RunRecord:
    """Run every way; results are equal, and so are the contents of the free blocks, in the order of their eviction."""
    caches.clear()
    keys["scheduler"] = {"enable_prefix_caching": True} | keys.pop("scheduler", {})
    exact, *lazies = every_way(table, law, blocks, **keys)
    assert_equal(exact, *lazies)
    ended = exact.requests.status == Status.COMPLETED
    left = [contents(pool, ended) for pool in caches]
    replicas = keys.get("replicas", 1)
    assert len(left) == replicas * (1 + len(lazies))
    assert left == left[:replicas] * (1 + len(lazies))
    return exact


CASES: dict[str, dict[str, Any]] = {
    "steady": {"table": (1, 300, 2e7, 300, 80), "spare": 4_000},
    "light load": {"table": (2, 60, 1e9, 300, 300), "spare": 100},
    "prompt pool": {"table": (3, 300, 2e7, 300, 80, 0, 20), "spare": 100},
    "storm": {"table": (4, 200, 1e5, 60, 200), "spare": 20},
    "storm, unforeseen ends": {"table": (5, 200, 1e5, 60, 120, 40), "spare": 10},
    "storm, prompt pool": {"table": (6, 200, 1e5, 60, 120, 40, 5), "spare": 10},
    "storm, small budget": {
        "table": (7, 100, 1e5, 30, 90, 10),
        "spare": 10,
        "block_size": 4,
        "scheduler": {"max_num_batched_tokens": 5},
    },
    "long-prefill threshold": {
        "table": (8, 200, 1e6, 500, 40),
        "spare": 50,
        "scheduler": {"long_prefill_token_threshold": 40, "max_num_batched_tokens": 128},
    },
    "blocks of one token": {"table": (9, 100, 1e6, 50, 50, 20), "spare": 150, "block_size": 1},
    "big blocks": {"table": (10, 200, 1e6, 300, 100, 20), "spare": 8, "block_size": 64},
    "fleet": {
        "table": (11, 300, 1e6, 200, 60),
        "spare": 20,
        "replicas": 3,
        "router": {"policy": "least_tokens"},
    },
    "host time": {"table": (12, 100, 1e8, 200, 250, 5), "spare": 60, "law": WindowLaw(64, host_ns=8_000_000)},
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", CASES)
def test_token_times_states_and_caches_are_equal(caches: list[PrefixPool], name: str, asynchronous: bool) -> None:
    case = dict(CASES[name])
    table = shared_table(*case.pop("table"))
    blocks = pool_for(table, case.get("block_size", 16), case.pop("spare"))
    scheduler = {"async_scheduling": asynchronous} | case.pop("scheduler", {})
    record = assert_every_way_equal(caches, table, case.pop("law", WindowLaw()), blocks, scheduler=scheduler, **case)
    assert record.requests.cached_tokens.any()
    if "storm" in name:
        assert record.requests.preemptions.sum() > 20
        assert record.requests.recovered_tokens.sum() > 100


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_a_clock_that_stops_at_any_moment(caches: list[PrefixPool], asynchronous: bool) -> None:
    """The contents of the cache are equal at the end, and while decodes hold blocks that are not settled."""
    table = shared_table(6, 60, 1e5, 60, 120, 40)
    blocks, scheduler = pool_for(table, 4, 60), {"async_scheduling": asynchronous, "max_num_batched_tokens": 32}
    for horizon_ms in range(5, 1200, 51):
        horizon = f"{horizon_ms}ms"
        assert_every_way_equal(caches, table, WindowLaw(), blocks, scheduler=scheduler, block_size=4, horizon=horizon)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("order", [order for order in ORDERS if order != "arrival"])
def test_a_sequence_may_give_way_after_it_was_served(caches: list[PrefixPool], order: str, asynchronous: bool) -> None:
    """The victim need not be the last one: the block that its step would have filled is registered nevertheless."""
    for seed in range(12):
        table = with_priorities(shared_table(seed, 40, 1e5, 30, 90, 20), seed)
        scheduler = ORDERS[order] | {"async_scheduling": asynchronous}
        assert_every_way_equal(caches, table, WindowLaw(), pool_for(table, 3, 5), scheduler=scheduler, block_size=3)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 40),
    gap_ns=st.sampled_from([0.0, 1e5, 1e7, 1e8]),
    prompt=st.sampled_from([5, 60, 700]),
    output=st.sampled_from([1, 8, 90]),
    slack=st.sampled_from([0, 20]),
    prompts=st.sampled_from([0, 4]),
    spare=st.integers(0, 60),
    block_size=st.sampled_from([1, 3, 16]),
    version=st.sampled_from(sorted(VERSIONS)),
    asynchronous=st.booleans(),
    chunked=st.booleans(),
    threshold=st.sampled_from([0, 7]),
    budget=st.sampled_from([2, 8, 64, 2048]),
    seqs=st.sampled_from([1, 3, 32]),
    watermark=st.sampled_from([0, 0.1]),
    window=st.sampled_from([0, 33]),
    horizon_ms=st.sampled_from([None, 50, 400]),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_random_runs(
    caches: list[PrefixPool],
    seed: int,
    requests: int,
    gap_ns: float,
    prompt: int,
    output: int,
    slack: int,
    prompts: int,
    spare: int,
    block_size: int,
    version: str,
    asynchronous: bool,
    chunked: bool,
    threshold: int,
    budget: int,
    seqs: int,
    watermark: float,
    window: int,
    horizon_ms: int | None,
    order: str,
) -> None:
    table = with_priorities(shared_table(seed, requests, gap_ns, prompt, output, slack, prompts), seed)
    scheduler = ORDERS[order] | {
        "version": version,
        "async_scheduling": asynchronous,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "max_num_batched_tokens": budget if chunked else 2048,
        "max_num_seqs": seqs,
        "watermark": watermark,
    }
    keys = {"block_size": block_size, "horizon": horizon_ms and f"{horizon_ms}ms"}
    blocks = int(pool_for(table, block_size, spare + 2) / (1 - watermark))
    assert_every_way_equal(caches, table, WindowLaw(window), blocks, scheduler=scheduler, **keys)
