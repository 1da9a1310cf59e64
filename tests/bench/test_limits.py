"""Timing limits, of whole commands and of the cost model: `python -m pytest -m bench tests/bench`."""

from __future__ import annotations

import time

import pytest

from cost_models import BatchShape, load_gpu, load_model
from simulator.recordings.check import replay_of
from simulator.recordings.reader import read_recording
from tests.bench.measure import COMMANDS, MANY, median_usage
from tests.conftest import ROOT
from tests.costs import build_roofline

pytestmark = pytest.mark.bench

#: On H100s: dense; mixture of experts; that with latent attention.
DEPLOYMENTS = [("llama-3.1-8b", 1), ("mixtral-8x7b", 2), ("deepseek-v3", 8)]


@pytest.mark.parametrize("name", COMMANDS)
def test_whole_commands(name: str) -> None:
    arguments, cpu_s, peak_mb = COMMANDS[name]
    usage = median_usage(3, *arguments)
    assert usage.cpu_s <= cpu_s
    assert usage.peak_mb <= peak_mb


def test_cpu_time_grows_with_the_number_of_requests_and_not_faster() -> None:
    start = median_usage(3, "quickstart", "--trace", "TEN").cpu_s
    few = median_usage(3, "bench/steady_100k").cpu_s - start
    many = median_usage(3, *MANY).cpu_s - start
    assert many / 10 <= 1.3 * few


def test_taking_prefill_and_decode_apart_costs_at_most_half_as_much_again() -> None:
    """The same requests on two GPUs, in user and system time beyond the start of a command."""
    start = median_usage(3, "quickstart", "--trace", "TEN").cpu_s
    together, apart = (median_usage(3, f"bench/{name}_100k").cpu_s - start for name in ("pair", "apart"))
    assert apart <= 1.5 * together


def test_speculation_costs_at_most_four_times_as_much_a_token() -> None:
    """The same output tokens, in user and system time beyond the start of a command."""
    start = median_usage(3, "quickstart", "--trace", "TEN").cpu_s
    plain, drafting = (median_usage(3, f"bench/{name}_100k").cpu_s - start for name in ("steady", "speculative"))
    assert drafting <= 4 * plain


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
