"""Timing limits, of whole commands and of the cost model: `python -m pytest -m bench tests/bench`."""

from __future__ import annotations

import time

import pytest

from cost_models import BatchShape, load_gpu, load_model
from simulator.recordings.check import replay_of
from simulator.recordings.reader import read_recording
from simulator.scenario import routers
from tests.bench.commands import usages_in_turn
from tests.bench.measure import chosen, verdict
from tests.bench.ratios import Limit, ratio_of
from tests.bench.routing import POLICIES, routing_us
from tests.conftest import ROOT
from tests.costs import build_roofline

pytestmark = pytest.mark.bench

#: On H100s: dense; mixture of experts; that with latent attention.
DEPLOYMENTS = [("llama-3.1-8b", 1), ("mixtral-8x7b", 2), ("deepseek-v3", 8)]


@pytest.mark.parametrize("limit", chosen([]), ids=lambda limit: limit.name)
def test_whole_commands(limit: Limit) -> None:
    folder = limit.missing()
    if folder is not None:
        pytest.skip(f"there is no {folder}")
    ratio = ratio_of(*usages_in_turn((limit.numerator, limit.denominator), 3))
    assert ratio.meets(limit), verdict(ratio, limit)


@pytest.mark.parametrize("settings", POLICIES, ids=lambda settings: settings.TAG)
def test_routing_among_a_thousand_replicas_costs_at_most_twice_as_much_as_among_sixteen(
    settings: routers.Router,
) -> None:
    pairs = [(routing_us(settings, 16), routing_us(settings, 1000)) for _ in range(10)]  # in turn: others use the CPUs
    few, many = map(min, zip(*pairs, strict=True))
    assert many <= 2 * few


@pytest.mark.parametrize(("model", "tensor_parallel"), DEPLOYMENTS)
def test_tables_are_built_fast(model: str, tensor_parallel: int) -> None:
    spec, gpu = load_model(model), load_gpu("h100-sxm")
    started = time.process_time()
    build_roofline(spec, gpu, tensor_parallel=tensor_parallel)
    assert time.process_time() - started < 0.3


@pytest.mark.parametrize("max_num_batched_tokens", [8192, 65_536, 1_000_000])
@pytest.mark.parametrize(("model", "ranks"), [("llama-3.1-8b", 1), ("gpt-oss-20b", 4), ("deepseek-r1", 8)])
def test_tables_of_large_budgets_are_built_as_fast(model: str, ranks: int, max_num_batched_tokens: int) -> None:
    spec, gpu = load_model(model), load_gpu("h200-sxm")
    budget = {"max_num_batched_tokens": max_num_batched_tokens, "expert_parallel": ranks > 1}
    started = time.process_time()
    build_roofline(spec, gpu, data_parallel=ranks, **budget)
    assert time.process_time() - started < 0.3


@pytest.mark.parametrize(("model", "tensor_parallel"), DEPLOYMENTS)
@pytest.mark.parametrize("chunks", [(), ((512, 0),), ((512, 0), (900, 3000))], ids=len)
def test_step_cost(model: str, tensor_parallel: int, chunks: tuple[tuple[int, int], ...]) -> None:
    roofline = build_roofline(load_model(model), load_gpu("h100-sxm"), tensor_parallel=tensor_parallel)
    shape = BatchShape(100, 120_000, 0, chunks, len(chunks), 100 + len(chunks))
    calls = 100_000
    started = time.process_time()
    for _ in range(calls):
        roofline.step_cost(shape)
    assert (time.process_time() - started) / calls < 2e-6


@pytest.mark.parametrize("name", ["apc_hash_ids", "apc_shared"])
def test_replay_with_prefix_caching(name: str, request: pytest.FixtureRequest) -> None:
    kept = ROOT / "tests" / "recordings" / name
    recording = read_recording(kept if kept.exists() else request.getfixturevalue("shared") / "oracle" / name)
    replay = replay_of(recording)
    started = time.process_time()
    steps = replay.run()
    assert steps / (time.process_time() - started) >= 20_000
