"""KV in CPU memory: loads by hand, the choice, progress when blocks are short, and the two engines alike."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import load_gpu
from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.errors import InputError
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.scenario import Scenario, parse_scenario
from simulator.scenario.schedulers import VERSIONS
from simulator.study.prepare import prepare
from simulator.study.run import Run, execute
from simulator.workload.requests import RequestTable
from tests.engine.test_lazy_equals_explicit import WindowLaw, assert_equal
from tests.engine.test_prefix_caching import pool_for, shared_table
from tests.helpers import PLACEHOLDER, request_table, run, scenario

MS = 10**6
#: A token's KV of Llama-3.1-8B; a block has 16 tokens.
TOKEN_BYTES = 131_072
BLOCK_BYTES = 16 * TOKEN_BYTES


def pcie(tokens_per_s: int, **keys: Any) -> dict[str, Any]:
    """Return a link with the rate of the KV of this number of tokens a second, without other costs by default."""
    free = {"efficiency": 1.0, "latency": "0ms", "per_descriptor": "0ms"}
    return {"pcie": free | {"bandwidth": f"{TOKEN_BYTES * tokens_per_s}B/s"} | keys}


def offloading(
    offload: dict[str, Any] | None = None,
    kv_blocks: int = 6,
    links: dict[str, Any] | None = None,
    engine: str = "auto",
    scheduler: dict[str, Any] | None = None,
    law: dict[str, Any] | None = None,
) -> Scenario:
    """Return a scenario with steps of 10 ms and 2 ms a prompt token, and a link with 1 ms a token."""
    memory: dict[str, Any] = {"kv_blocks": kv_blocks}
    if offload is not None:
        memory["offload"] = {"capacity": "200GiB"} | offload
    return scenario(
        PLACEHOLDER,
        law or {"base": "10ms", "per_prefill_token": "2ms"},
        scheduler={"enable_prefix_caching": True} | (scheduler or {}),
        memory=memory,
        links=pcie(1000) if links is None else links,
        run={"checks": True, "engine": engine},
    )


def serve(asked: Scenario, table: RequestTable) -> Run:
    finished = run(asked, table)
    check(finished.record)
    return finished


def ttft_ms(record: RunRecord) -> list[float]:
    return ((record.requests.first_token_ns - record.requests.arrival_ns) / MS).tolist()


#: Prompts of 4 blocks, a second apart: one text, another that pushes 3 blocks of it out of 6, and the first again.
ALTERNATING = request_table([0, 1000 * MS, 2000 * MS], [64] * 3, [2] * 3, prefix_id=[0, 1, 0], prefix_tokens=[64] * 3)


# --- by hand


@pytest.mark.parametrize("engine", ["lazy", "explicit"])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_a_load_takes_bytes_over_bandwidth(engine: str, write: str) -> None:
    """16 tokens are left on the GPU, 32 are loaded in 32 ms, and the last block is computed in 10 + 2 x 16 ms."""
    loaded = serve(offloading({"policy": "reload", "write": write}, engine=engine), ALTERNATING)
    assert ttft_ms(loaded.record) == [138, 138, 32 + 42]
    assert loaded.record.offload.tokens.tolist() == [32]
    assert loaded.record.offload.bytes.tolist() == [32 * TOKEN_BYTES]
    section = loaded.summary["offload"]
    assert (section["hit_tokens"], section["reloaded_tokens"], section["recomputed_instead_tokens"]) == (32, 32, 0)
    assert section["reload_ms"]["mean"] == 32
    # Through: the 4 blocks of two texts, once. Back: 3 to make room for the second prompt, 1 for the load, and 2 for
    # the rest of the third.
    assert section["written_bytes"] == {"write_through": 8, "write_back": 6}[write] * BLOCK_BYTES
    could_carry = 1000 * TOKEN_BYTES * loaded.summary["duration_s"]
    assert section["write_share"] == pytest.approx(section["written_bytes"] / could_carry, rel=1e-6)
    assert loaded.summary["prefix_cache"]["hit_tokens"] == 48


@pytest.mark.parametrize("engine", ["lazy", "explicit"])
def test_what_is_not_loaded_is_computed_again_and_counted(engine: str) -> None:
    computed = serve(offloading({"policy": "recompute"}, engine=engine), ALTERNATING)
    assert ttft_ms(computed.record) == ttft_ms(serve(offloading(), ALTERNATING).record) == [138, 138, 10 + 2 * 48]
    section = computed.summary["offload"]
    assert (section["hit_tokens"], section["reloaded_tokens"], section["recomputed_instead_tokens"]) == (32, 0, 32)
    assert (section["read_bytes"], computed.record.offload.loaded_ns.tolist()) == (0, [-1])
    assert "reload_ms" not in section


def test_latency_and_descriptors_come_before_the_bytes() -> None:
    links = pcie(1000, latency="5ms", per_descriptor="1ms")
    record = serve(offloading({"policy": "reload", "descriptors_per_block": 3}, links=links), ALTERNATING).record
    assert ((record.offload.loaded_ns - record.offload.found_ns) / MS).tolist() == [5 + 2 * 3 + 32]


def test_loads_take_turns() -> None:
    """Two prompts of two texts are sent again at once: their loads take 48 ms, one after the other. Meanwhile the
    first prompt's last block is computed, in 42 ms."""
    times, texts = [0, 1000, 2000, 3000, 4000, 4000], [0, 1, 2, 3, 0, 1]
    table = request_table([at * MS for at in times], [64] * 6, [1] * 6, prefix_id=texts, prefix_tokens=[64] * 6)
    record = serve(offloading({"policy": "reload"}, kv_blocks=8), table).record
    assert record.offload.tokens.tolist() == [48, 48]
    assert ((record.offload.loaded_ns - record.offload.found_ns) / MS).tolist() == [48, 96]
    assert ttft_ms(record)[4:] == [48 + 42, 96 + 42]


@pytest.mark.parametrize("engine", ["lazy", "explicit"])
def test_what_a_load_lacks_for_its_prompt_is_not_there_for_another(engine: str) -> None:
    """Seven blocks: the first load has three and will want a fourth. Ten ms later a prompt of four comes, three of
    which could be loaded: with the promised block its four do not fit, so that it is computed at once, and the first
    one's last block when it has ended."""
    times, texts = [0, 1000, 2000, 3000, 4000, 4010], [0, 1, 2, 3, 0, 1]
    table = request_table([at * MS for at in times], [64] * 6, [1] * 6, prefix_id=texts, prefix_tokens=[64] * 6)
    record = serve(offloading({"policy": "reload"}, kv_blocks=7, engine=engine), table).record
    assert record.offload.request.tolist() == [4, 5]
    assert record.offload.loaded_ns.tolist() == [4048 * MS, -1]
    assert ttft_ms(record)[4:] == [10 + 138 + 42, 138]


def test_who_wants_what_is_on_its_way_waits_for_it() -> None:
    """Three prompts with one text are sent again at once: it is loaded once."""
    times, texts = [0, 1000, 3000, 3000, 3000], [0, 1, 0, 0, 0]
    table = request_table([at * MS for at in times], [64] * 5, [1] * 5, prefix_id=texts, prefix_tokens=[64] * 5)
    record = serve(offloading({"policy": "reload"}, kv_blocks=12, links=pcie(500)), table).record
    assert not len(record.offload.tokens)  # all of it is on the GPU still
    wide = request_table([at * MS for at in times], [64, 192, 64, 64, 64], [1] * 5, prefix_id=texts)
    wide = dataclasses.replace(wide, prefix_tokens=wide.prompt_tokens)
    record = serve(offloading({"policy": "reload"}, kv_blocks=12, links=pcie(500)), wide).record
    assert record.offload.tokens.tolist() == [48]
    assert ttft_ms(record)[2:] == [96 + 10 + 2 * 3 * 16] * 3  # one step computes the last block of each


# --- the choice


def choice(prompt: int, tokens_per_s: int, per_context: str = "0us") -> float:
    """Return the loaded share of the found blocks, when a prompt is sent again after its eviction."""
    blocks = prompt // 16
    table = request_table([0, 10**10, 2 * 10**10], [prompt] * 3, [1] * 3, prefix_id=[0, 1, 0])
    table = dataclasses.replace(table, prefix_tokens=table.prompt_tokens)
    law = {"base": "5ms", "per_prefill_token": "20us", "per_context_token": per_context}
    links = pcie(tokens_per_s, latency="1ms")
    section = serve(offloading({}, kv_blocks=blocks, links=links, law=law), table).summary["offload"]
    return float(section["reloaded_tokens"] / section["hit_tokens"])


def test_the_cheaper_way_is_taken() -> None:
    """A token is computed in 20 us: a link that takes 10 us is worth its latency of 1 ms from 100 tokens on."""
    assert choice(64, 100_000) == 0
    assert choice(112, 100_000) == 0
    assert choice(160, 100_000) == 1
    assert choice(4096, 100_000) == 1
    assert choice(4096, 40_000) == 0  # 25 us a token


def test_chunks_that_look_back_make_long_contexts_worth_loading() -> None:
    """Within one step the linear law counts a chunk's keys once; in chunks the cost grows with the square."""
    table = request_table([0, 10**11, 2 * 10**11], [4096] * 3, [1] * 3, prefix_id=[0, 1, 0], prefix_tokens=[4096] * 3)
    law = {"base": "1ms", "per_prefill_token": "20us", "per_context_token": "10us"}
    shares = []
    for budget in (4096, 256):
        scheduler = {"max_num_batched_tokens": budget}
        asked = offloading({}, kv_blocks=256, links=pcie(30_000), scheduler=scheduler, law=law)
        section = serve(asked, table).summary["offload"]
        shares.append(section["reloaded_tokens"] / section["hit_tokens"])
    assert shares == [0, 1]  # 33 us against 20 us; against 20 us and, for each token, 10 us x 8.5 earlier keys


# --- progress


@pytest.mark.parametrize("engine", ["lazy", "explicit"])
@pytest.mark.parametrize("reserve", [True, False])
def test_parked_loads_do_not_hold_what_the_head_needs(engine: str, reserve: bool) -> None:
    """vllm#45388: 2 loads hold 5 of 8 blocks, the head needs 6, and nothing runs. It waits for one load only."""
    times, texts, prompts = [0, 1000, 2000, 4000, 4000, 4001], [0, 1, 2, 0, 1, 3], [64, 48, 128, 64, 48, 96]
    table = request_table([at * MS for at in times], prompts, [1] * 6, prefix_id=texts, prefix_tokens=prompts)
    asked = offloading({"policy": "reload"}, 8, pcie(100), engine, {"scheduler_reserve_full_isl": reserve})
    record = serve(asked, table).record
    assert record.offload.tokens.tolist() == [48, 32]
    assert ((record.offload.loaded_ns - record.offload.found_ns) / MS).tolist() == [480, 800]
    first = record.requests.first_token_ns / MS
    assert int(record.requests.emitted_tokens.sum()) == 6
    if reserve:  # the head of 6 blocks starts when the first load and then its last block are done
        assert first[5] == 4000 + 480 + 42 + 202


def test_prompts_that_push_each_others_loads_out_end() -> None:
    """No two of them fit at once, and each is loaded for at most once an admission."""
    texts = [i % 4 for i in range(40)]
    table = request_table([i * MS for i in range(40)], [80] * 40, [3] * 40, prefix_id=texts, prefix_tokens=[80] * 40)
    for engine in ("lazy", "explicit"):
        record = serve(offloading({"policy": "reload"}, 7, pcie(10_000), engine), table).record
        assert record.requests.emitted_tokens.tolist() == [3] * 40
        assert len(record.offload.tokens) <= 40 + int(record.requests.preemptions.sum())


# --- what it is for


def cycling(rounds: int, texts: int, tokens: int, gap_ms: int) -> RequestTable:
    """Return `texts` prompts, one after the other, repeatedly."""
    count = rounds * texts
    ids = [i % texts for i in range(count)]
    times = [i * gap_ms * MS for i in range(count)]
    return request_table(times, [tokens] * count, [2] * count, prefix_id=ids, prefix_tokens=[tokens] * count)


def test_a_working_set_beyond_the_gpu_but_not_beyond_cpu_memory() -> None:
    """An LRU pool that is smaller than a cycle finds nothing; with CPU memory all rounds but the first one find all."""
    table = cycling(rounds=5, texts=10, tokens=160, gap_ms=1000)
    alone = serve(offloading(None, kv_blocks=40), table).summary
    behind = serve(offloading({}, kv_blocks=40, links=pcie(10_000)), table).summary
    assert alone["prefix_cache"]["hit_rate"] == 0
    assert behind["prefix_cache"]["hit_rate"] == pytest.approx(4 / 5 * 9 / 10)  # the last block is computed again
    assert behind["latency"]["ttft_ms"]["p50"] == pytest.approx(14.4 + 10 + 2 * 16)
    assert alone["latency"]["ttft_ms"]["p50"] == 330
    small = {"capacity": f"{50 * BLOCK_BYTES}B"}  # half a cycle: an LRU again
    assert serve(offloading(small, kv_blocks=40), table).summary["prefix_cache"]["hit_rate"] == 0


def test_a_preempted_sequence_comes_back_with_what_cpu_memory_has_of_it() -> None:
    table = request_table([0, 0], [48, 48], [60, 60])
    for engine in ("lazy", "explicit"):
        asked = offloading({"policy": "reload"}, 9, pcie(100_000), engine, law={"base": "10ms"})
        record = serve(asked, table).record
        assert record.requests.preemptions.sum() > 0
        assert record.offload.tokens.sum() > 0
        assert record.requests.emitted_tokens.tolist() == [60, 60]


def test_prefill_pools_have_it_too() -> None:
    limits = {"version": "none", "max_num_batched_tokens": 10**9, "max_model_len": 10**8}
    law = {"kind": "linear", "base": "10ms", "per_prefill_token": "2ms"}
    caching = limits | {"enable_prefix_caching": True}
    memory = {"kv_blocks": 6, "offload": {"capacity": "200GiB", "policy": "reload"}}
    prefill = {"role": "prefill", "gpu": "h100-sxm", "scheduler": caching, "cost_model": law, "memory": memory}
    decode = {"role": "decode", "gpu": "h100-sxm", "scheduler": limits, "cost_model": law, "memory": {"kv_blocks": 99}}
    document = {"name": "t", "model": "llama-3.1-8b", "workload": PLACEHOLDER, "links": pcie(1000)}
    document |= {"deployment": {"pools": {"p": prefill, "d": decode}}, "run": {"checks": True}}
    record = serve(parse_scenario(json.dumps(document)), ALTERNATING).record
    assert record.offload.tokens.tolist() == [16]  # without the block of the second token, 2 are left
    computed = (record.transfers.prefill_end_ns - record.requests.arrival_ns) / MS
    assert computed.tolist() == [138, 138, 16 + 42]


def test_ranks_that_step_together_load_too() -> None:
    """A model with experts, with two data-parallel ranks that step together; requests are sent to them in turn."""
    times, texts = [0, 1, 1000, 1001, 2000, 2001], [0, 0, 1, 1, 0, 0]
    table = request_table([at * MS for at in times], [64] * 6, [2] * 6, prefix_id=texts, prefix_tokens=[64] * 6)
    caching = {"version": "none", "enable_prefix_caching": True, "max_model_len": 4096}
    memory = {"kv_blocks": 6, "offload": {"capacity": "200GiB", "policy": "reload"}}
    pool = {"gpu": "h100-sxm", "tensor_parallel": 2, "data_parallel": 2, "scheduler": caching, "memory": memory}
    document = {"name": "t", "model": "mixtral-8x7b", "workload": PLACEHOLDER, "run": {"checks": True}}
    record = serve(parse_scenario(json.dumps(document | {"deployment": {"pools": {"main": pool}}})), table).record
    assert record.offload.replica.tolist() == [0, 1]
    assert record.offload.tokens.tolist() == [32, 32]
    assert (record.offload.loaded_ns > record.offload.found_ns).all()


# --- what cannot be


def test_it_needs_prefix_caching_and_room_for_a_block() -> None:
    with pytest.raises(InputError, match=r"pools\.main\.memory\.offload: needs prefix caching.*enable_prefix_caching"):
        prepare(offloading({}, scheduler={"enable_prefix_caching": False}))
    asked = offloading({})
    pool = dataclasses.replace(asked.deployment.pools["main"], pipeline_parallel=2)
    lanes = dataclasses.replace(asked, deployment=dataclasses.replace(asked.deployment, pools={"main": pool}))
    with pytest.raises(InputError, match=r"offload: is not simulated with a pipeline"):
        prepare(lanes)
    with pytest.raises(InputError, match=r"offload\.capacity: 2,097,151 bytes are less than one block .* 2,097,152"):
        prepare(offloading({"capacity": f"{BLOCK_BYTES - 1}B"}))


def test_recordings_have_no_loads(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="a recording has no loads from CPU memory"):
        execute(prepare(offloading({})), steps=tmp_path / "steps")


# --- the two engines alike


def every_engine(
    table: RequestTable, law: WindowLaw, blocks: int, block_size: int, horizon: str | None, **keys: Any
) -> list[RunRecord]:
    """Return the run of every engine; a token has 1,000 bytes."""
    records = []
    service = Service(law, blocks, 10**8, keys.get("replicas", 1), gpu_spec=load_gpu("h100-sxm"), kv_token_bytes=1000)
    scheduler = {"enable_prefix_caching": True} | keys.pop("scheduler")
    memory = {"block_size": block_size, "offload": keys.pop("offload")}
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        options = {"engine": engine, "checks": checks} | ({"horizon": horizon} if horizon else {})
        asked = scenario(PLACEHOLDER, {"base": "1ms"}, scheduler=scheduler, memory=memory, run=options, **keys)
        records.append(simulate(asked, table, [service]))
        check(records[-1])
    return records


def assert_every_engine_equal(*given: Any, **keys: Any) -> RunRecord:
    exact, *lazies = every_engine(*given, **keys)
    assert_equal(exact, *lazies)
    for lazy in lazies:
        assert lazy.tiers == exact.tiers
        for field in dataclasses.fields(exact.offload):
            assert np.array_equal(getattr(lazy.offload, field.name), getattr(exact.offload, field.name)), field.name
    return exact


LINK = {"bandwidth": "40MB/s", "efficiency": 1.0, "latency": "10us", "per_descriptor": "1us"}


@pytest.mark.parametrize("write", ["write_through", "write_back"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("case", ["few blocks", "storm", "fleet"])
def test_token_times_states_and_cpu_memory_are_equal(case: str, asynchronous: bool, write: str) -> None:
    table, spare, replicas = {
        "few blocks": (shared_table(3, 120, 2e7, 300, 40, 0, 20), 20, 1),
        "storm": (shared_table(6, 80, 1e5, 60, 120, 40, 5), 10, 1),
        "fleet": (shared_table(11, 120, 1e6, 200, 60), 20, 3),
    }[case]
    offload = {"capacity": "3MB", "policy": "reload", "write": write}
    scheduler = {"async_scheduling": asynchronous, "max_num_batched_tokens": 512, "max_num_seqs": 64}
    keys = {"offload": offload, "scheduler": scheduler, "links": {"pcie": LINK}, "replicas": replicas}
    record = assert_every_engine_equal(table, WindowLaw(), pool_for(table, 16, spare), 16, None, **keys)
    assert np.count_nonzero(record.offload.bytes) > 10
    if case == "storm":
        assert record.requests.preemptions.sum() > 20


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    requests=st.integers(1, 30),
    gap_ns=st.sampled_from([0.0, 1e5, 1e7, 1e8]),
    prompt=st.sampled_from([60, 500]),
    output=st.sampled_from([1, 8, 60]),
    slack=st.sampled_from([0, 20]),
    prompts=st.sampled_from([0, 4]),
    spare=st.integers(2, 40),
    block_size=st.sampled_from([3, 16]),
    capacity=st.sampled_from([5, 40, 2000]),
    policy=st.sampled_from(["cheaper", "reload", "recompute"]),
    write=st.sampled_from(["write_through", "write_back"]),
    bandwidth=st.sampled_from(["10MB/s", "1GB/s"]),
    sharing=st.sampled_from(["max_min", "fifo"]),
    version=st.sampled_from(sorted(VERSIONS)),
    asynchronous=st.booleans(),
    budget=st.sampled_from([32, 512]),
    seqs=st.sampled_from([2, 64]),
    horizon_ms=st.sampled_from([None, 50, 400]),
)
def test_random_runs(
    seed: int,
    requests: int,
    gap_ns: float,
    prompt: int,
    output: int,
    slack: int,
    prompts: int,
    spare: int,
    block_size: int,
    capacity: int,
    policy: str,
    write: str,
    bandwidth: str,
    sharing: str,
    version: str,
    asynchronous: bool,
    budget: int,
    seqs: int,
    horizon_ms: int | None,
) -> None:
    table = shared_table(seed, requests, gap_ns, prompt, output, slack, prompts)
    keys = {
        "offload": {"capacity": f"{capacity * block_size * 1000}B", "policy": policy, "write": write},
        "scheduler": {
            "version": version,
            "async_scheduling": asynchronous,
            "max_num_batched_tokens": budget,
            "max_num_seqs": seqs,
        },
        "links": {"pcie": LINK | {"bandwidth": bandwidth}, "sharing": sharing},
    }
    horizon = horizon_ms and f"{horizon_ms}ms"
    assert_every_engine_equal(table, WindowLaw(), pool_for(table, block_size, spare), block_size, horizon, **keys)
