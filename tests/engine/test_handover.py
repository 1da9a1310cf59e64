"""Prefill on one replica, decode on another: by hand, by conservation laws, and the two engines alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.results.attribution import attribute
from simulator.results.columns import Status
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.results.segments import token_time_digest
from simulator.scenario import Scenario, parse_scenario
from simulator.scenario.plain_values import plain
from simulator.study.prepare import prepare
from simulator.study.run import Run, execute
from tests.helpers import PLACEHOLDER, plain_scheduler, request_table, run

MS = 10**6
#: A step takes 1 ms a prompt token and 10 ms else; a token's KV of Llama-3.1-8B is 131,072 bytes.
LAW = {"kind": "linear", "base": "10ms", "per_prefill_token": "1ms"}
TOKEN_BYTES = 131_072
#: A link on which a token of KV takes 1 ms, with neither latency nor descriptors.
LINKS = {
    "placement": "apart",
    "network": {
        "bandwidth": f"{TOKEN_BYTES * 1000}B/s",
        "efficiency": 1.0,
        "latency": "0ms",
        "per_descriptor": "0ms",
    },
}
FIELDS = ("scheduled_ns", "first_token_ns", "finish_ns", "emitted_tokens", "preemptions", "replica")


def apart(
    handover: dict[str, Any] | None = None,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    **keys: Any,
) -> Scenario:
    """Return a scenario with one prefill and one decode replica by default; `keys` has `links` and so on."""
    base = {"gpu": "h100-sxm", "cost_model": LAW}
    limits = {"max_num_batched_tokens": 10**9, "max_model_len": 10**8}

    def pool(role: str, given: dict[str, Any] | None) -> dict[str, Any]:
        given = dict(given or {})
        scheduler = plain_scheduler(limits | given.pop("scheduler", {}))
        return base | {"role": role, "scheduler": scheduler, "memory": {"kv_blocks": 10**6}} | given

    deployment: dict[str, Any] = {"pools": {"prefill": pool("prefill", prefill), "decode": pool("decode", decode)}}
    if handover is not None:
        deployment["handover"] = handover
    document = {"name": "t", "model": "llama-3.1-8b", "workload": PLACEHOLDER, "deployment": deployment}
    return parse_scenario(json.dumps(document | {"links": LINKS, "run": {"checks": True}} | keys))


def serve(scenario: Scenario, requests: Sequence[tuple[int, int, int]]) -> Run:
    """Run requests of (arrival in ms, prompt tokens, output tokens)."""
    times, prompts, outputs = zip(*requests, strict=True)
    finished = run(scenario, request_table([time * MS for time in times], prompts, outputs))
    check(finished.record)
    return finished


def ms(values: Any) -> list[float]:
    return [value / MS for value in np.asarray(values).tolist()]


# --- one request by hand: 10 + 40 ms of prefill, 39 or 40 ms of transfer, 10 ms a decode


@pytest.mark.parametrize(
    ("first_token", "first", "last", "sent"),
    [("decode", 50 + 39 + 10, 50 + 39 + 30, 39), ("transfer", 50 + 40, 50 + 40 + 20, 40), ("prefill", 50, 110, 40)],
)
def test_one_request(first_token: str, first: int, last: int, sent: int) -> None:
    record = serve(apart({"first_token": first_token}), [(0, 40, 3)]).record
    assert ms(record.requests.first_token_ns) == [first]
    assert ms(record.requests.finish_ns) == [last]
    transfers = record.transfers
    assert ms(transfers.prefill_end_ns) == ms(transfers.start_ns) == ms(transfers.reserved_ns) == [50]
    assert ms(transfers.arrived_ns) == ms(transfers.joined_ns) == [50 + sent]
    assert transfers.bytes.tolist() == [sent * TOKEN_BYTES]
    assert (record.requests.replica.tolist(), transfers.source.tolist(), transfers.target.tolist()) == ([1], [0], [1])


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("first_token", ["decode", "transfer", "prefill"])
@pytest.mark.parametrize("overlap", ["none", "layerwise"])
def test_a_request_of_one_token_and_one_of_one_prompt_token(mode: str, first_token: str, overlap: str) -> None:
    if overlap == "layerwise" and mode == "pull":
        with pytest.raises(InputError, match=r"handover\.overlap: layerwise needs mode: push"):
            apart({"mode": mode, "overlap": overlap})
        return
    handover = {"mode": mode, "first_token": first_token, "overlap": overlap}
    record = serve(apart(handover), [(0, 40, 1), (500, 1, 2), (900, 1, 1)]).record
    assert record.requests.emitted_tokens.tolist() == [1, 2, 1]


def test_setup_comes_before_the_bytes_and_transfers_of_a_prefill_replica_take_turns() -> None:
    settings = {"first_token": "transfer", "setup": "25ms", "max_concurrent": 1}
    record = serve(apart(settings), [(0, 40, 1), (0, 40, 1)]).record
    # Both prompts are one step of 90 ms. Each hand-over takes 25 + 40 ms.
    assert ms(record.transfers.prefill_end_ns) == [90, 90]
    assert ms(record.transfers.arrived_ns) == [90 + 65, 90 + 130]
    at_once = serve(apart(settings | {"max_concurrent": None}), [(0, 40, 1), (0, 40, 1)]).record
    assert ms(at_once.transfers.arrived_ns) == [90 + 25 + 80] * 2  # they share the link


def test_layers_leave_while_the_next_ones_are_computed() -> None:
    """A layer-wise transfer in the engine: exposed are max(Tx / L, Tx - Tp (L - 1) / L); Llama-3.1-8B has 32 layers."""
    settings = {"mode": "push", "overlap": "layerwise", "group_setup": "0s", "first_token": "transfer"}
    slow = serve(apart(settings), [(0, 64, 1)]).record  # Tp = 74 ms, Tx = 64 ms
    assert ms(slow.transfers.arrived_ns - slow.transfers.prefill_end_ns) == pytest.approx([64 / 32], abs=1e-5)
    law = LAW | {"per_prefill_token": "100us", "base": "0.4ms"}
    fast = serve(apart(settings, prefill={"cost_model": law}), [(0, 64, 1)]).record  # Tp = 6.8 ms
    exposed = ms(fast.transfers.arrived_ns - fast.transfers.prefill_end_ns)
    assert exposed == pytest.approx([64 - 6.8 * 31 / 32], abs=1e-5)


def test_layerwise_chunks_leave_one_by_one() -> None:
    """Of 4 chunks of 16 tokens in steps of 26 ms each, only the last one's last layer is exposed."""
    settings = {"mode": "push", "overlap": "layerwise", "group_setup": "0s", "first_token": "transfer"}
    record = serve(apart(settings, prefill={"scheduler": {"max_num_batched_tokens": 16}}), [(0, 64, 1)]).record
    assert ms(record.transfers.prefill_end_ns) == [4 * 26]
    assert ms(record.transfers.arrived_ns) == pytest.approx([4 * 26 + 16 / 32], abs=1e-5)
    assert record.transfers.bytes.tolist() == [64 * TOKEN_BYTES]


def test_groups_of_layers_have_a_set_up_of_their_own_and_it_is_transfer() -> None:
    """Tp = 74 ms, Tx = 64 ms, four groups of eight layers that take 30 ms each: the last is set up 18.5 + 4 x 30 ms
    after the prefill's begin, and its bytes take 16. What of that is exposed is transfer."""
    settings = {"mode": "push", "overlap": "layerwise", "layers_per_group": 8, "group_setup": "30ms"}
    finished = serve(apart(settings | {"first_token": "transfer"}), [(0, 64, 1)])
    transfers = finished.record.transfers
    exposed_ns = transfers.arrived_ns - transfers.prefill_end_ns
    assert ms(exposed_ns) == pytest.approx([18.5 + 4 * 30 + 16 - 74], abs=1e-5)
    assert attribute(finished.record)["transfer"].tolist() == exposed_ns.tolist()


def test_by_default_a_layer_goes_by_itself_and_takes_the_software_some_time() -> None:
    layered = apart({"mode": "push", "overlap": "layerwise"}).deployment.handover
    assert layered is not None and (layered.layers_per_group, layered.group_setup) == (1, 400_000)
    with pytest.raises(InputError, match=r"handover\.group_setup: has an effect only with overlap: layerwise"):
        apart({"group_setup": "1ms"})


def test_layers_wait_for_the_set_up() -> None:
    settings = {
        "mode": "push",
        "overlap": "layerwise",
        "group_setup": "0s",
        "first_token": "transfer",
        "setup": "500ms",
    }
    record = serve(apart(settings, prefill={"scheduler": {"max_num_batched_tokens": 16}}), [(0, 64, 1)]).record
    assert ms(record.transfers.arrived_ns) == pytest.approx([500 + 64], abs=1e-5)


def test_copies_of_kv_are_sent_to_each_gpu_of_the_decode_side() -> None:
    """Llama-3.1-8B has 8 KV heads: on 16 GPUs each is there twice."""
    wide = {"tensor_parallel": 16}
    record = serve(apart({"first_token": "transfer"}, decode=wide), [(0, 40, 2)]).record
    assert record.transfers.bytes.tolist() == [2 * 40 * TOKEN_BYTES]
    record = serve(apart({"first_token": "transfer"}, prefill=wide), [(0, 40, 2)]).record
    assert record.transfers.bytes.tolist() == [40 * TOKEN_BYTES]


def test_a_request_ends_when_its_only_token_is_delivered() -> None:
    """With asynchronous scheduling, a token at a step boundary is delivered at the end of the step in flight."""
    busy = {"scheduler": {"async_scheduling": True}}
    requests = [(0, 40, 30), (85, 30, 1)]
    whole = serve(apart({"first_token": "transfer"}, decode=busy), requests).record
    assert ms(whole.transfers.joined_ns)[1] == 160
    assert ms(whole.requests.finish_ns)[1] == 170
    cut = serve(apart({"first_token": "transfer"}, decode=busy, run={"horizon": "165ms"}), requests).record
    assert cut.requests.status[1] == Status.IN_FLIGHT


# --- failures


def test_a_prompt_that_is_preempted_in_its_last_step_is_computed_where_it_was_to_go() -> None:
    scheduler = {"async_scheduling": True, "long_prefill_token_threshold": 20, "max_num_batched_tokens": 100}
    tight = {"scheduler": scheduler | {"scheduler_reserve_full_isl": False}, "memory": {"kv_blocks": 8}}
    record = serve(apart({}, prefill=tight), [(0, 100, 3), (0, 50, 3), (0, 50, 3)]).record
    assert record.requests.emitted_tokens.tolist() == [3, 3, 3]
    assert record.transfers.recomputed.sum() > 0


def test_a_failed_transfer_is_tried_again_then_computed_where_it_was_to_go() -> None:
    requests = [(1000 * i, 40, 2) for i in range(200)]
    settings = {"first_token": "transfer", "failure_rate": 0.3}
    once = serve(apart(settings | {"max_retries": 1}), requests).record
    never = serve(apart(settings), requests).record
    for record in (once, never):
        assert record.requests.emitted_tokens.tolist() == [2] * 200
    failed = np.asarray(never.transfers.failures) > 0
    assert 0.2 < failed.mean() < 0.4
    assert never.transfers.recomputed.tolist() == failed.astype(int).tolist()
    # The same draws with a retry: what fails twice is the rest.
    assert np.array_equal(np.asarray(once.transfers.failures) > 0, failed)
    twice = np.asarray(once.transfers.failures) == 2
    assert once.transfers.recomputed.tolist() == twice.astype(int).tolist()
    assert 0.03 < twice.mean() < 0.16
    ttft = np.asarray(never.requests.first_token_ns - never.requests.arrival_ns) / MS
    assert set(ttft[~failed].tolist()) == {90.0}
    assert set(ttft[failed].tolist()) == {50.0 + 40 + 50}


# --- memory


def test_a_full_decode_side_stalls_the_prefill_side_with_its_blocks_pinned() -> None:
    """sglang#6351: the queue is not empty, and yet the prefill side idles."""
    small = {"memory": {"kv_blocks": 6}}
    finished = serve(apart({"first_token": "transfer"}, prefill=small, decode=small), [(0, 48, 30)] * 6)
    record, summary = finished.record, finished.summary
    prefill = summary["pools"]["prefill"]
    assert prefill["busy_share"] < 0.5
    assert ms(record.requests.scheduled_ns)[-1] > 900  # and never preempted, nor short of a slot
    assert prefill["kv"]["peak_use"] == 1.0
    pinned = np.asarray(record.transfers.reserved_ns - record.transfers.prefill_end_ns)
    assert ms(pinned)[-1] > 200


@pytest.mark.parametrize("policy", ["vllm", "tensorrt_llm"])
def test_what_is_being_fetched_keeps_the_next_prompt_from_being_computed(policy: str) -> None:
    """10 blocks, and prompts of 7: 110 ms of prefill and 100 ms of transfer alternate, with every policy."""
    prefill = {"scheduler": {"policy": policy}, "memory": {"kv_blocks": 10}}
    record = serve(apart({"first_token": "transfer"}, prefill=prefill), [(0, 100, 2)] * 5).record
    assert ms(record.transfers.prefill_end_ns) == [110, 320, 530, 740, 950]


@pytest.mark.parametrize("engine", ["explicit", "lazy"])
def test_sglang_retracts_even_the_last_request_where_what_comes_in_holds_the_memory(engine: str) -> None:
    """The first one decodes alone, needs one block more than the joining one leaves of 20, and is computed again;
    `checks` verifies that no block has two holders."""
    decode = {"scheduler": {"policy": "sglang", "enable_prefix_caching": False}, "memory": {"kv_blocks": 20}}
    scenario = apart({"first_token": "transfer"}, decode=decode, run={"checks": True, "engine": engine})
    requests = serve(scenario, [(7 * i, 90, 60) for i in range(5)]).record.requests
    assert requests.preemptions.tolist() == [1, 0, 0, 0, 0]
    assert requests.emitted_tokens.tolist() == [60] * 5


def test_parked_transfers_do_not_keep_a_waiting_head_from_its_blocks_for_ever() -> None:
    """vllm#45388: 2 arriving requests hold 5 of 8 blocks, and the head of the queue needs 6."""
    decider = {"policy": "prefill_load", "max_tokens": 79}
    handover = {"decider": decider, "first_token": "transfer", "setup": "200ms"}
    scenario = apart(handover, decode={"memory": {"kv_blocks": 8}})
    record = serve(scenario, [(0, 38, 5), (0, 42, 5), (60, 90, 3)]).record
    assert record.requests.emitted_tokens.tolist() == [5, 5, 3]


def test_what_the_decode_side_has_in_its_cache_is_not_sent() -> None:
    caching = {"scheduler": {"enable_prefix_caching": True}}
    table = request_table([0, 10**9], [48, 48], [2, 2], prefix_id=[0, 0], prefix_tokens=[32, 32])
    finished = run(apart({"first_token": "transfer"}, prefill=caching, decode=caching), table)
    assert finished.record.transfers.bytes.tolist() == [48 * TOKEN_BYTES, 16 * TOKEN_BYTES]
    assert finished.record.requests.cached_tokens.tolist() == [0, 32]  # on the prefill side
    alone = run(apart({"first_token": "transfer"}, decode=caching), table)
    assert alone.summary["prefix_cache"]["hit_tokens"] == 32
    assert alone.record.transfers.bytes.tolist() == [48 * TOKEN_BYTES, 16 * TOKEN_BYTES]


# --- who goes where


def test_deciders() -> None:
    requests = [(0, 100, 2), (0, 40, 2), (0, 100, 2), (1, 100, 2)]
    long_prompt = {"policy": "long_prompt", "uncached_tokens": 99}
    record = serve(apart({"decider": long_prompt}), requests).record
    assert record.transfers.request.tolist() == [0, 2, 3]
    load = {"policy": "prefill_load", "max_tokens": 100}
    record = serve(apart({"decider": load}), requests).record
    assert record.transfers.request.tolist() == [0, 1]


def test_a_decider_does_not_disturb_the_turns_of_the_routers() -> None:
    two = {"replicas": 2}
    decider = {"policy": "long_prompt", "uncached_tokens": 10}
    record = serve(apart({"decider": decider}, prefill=two, decode=two), [(100 * i, 40, 2) for i in range(6)]).record
    assert record.transfers.source.tolist() == [0, 1] * 3
    assert record.transfers.target.tolist() == [2, 3] * 3


def test_prompts_that_wait_for_a_place_behind_them_count_where_they_will_be_computed() -> None:
    scenario = apart({"mode": "push"}, prefill={"replicas": 2}, router={"policy": "least_tokens"})
    assert serve(scenario, [(0, 100, 2)] * 6).record.transfers.source.tolist() == [0, 1] * 3


def test_what_is_not_handed_over_goes_to_pools_that_do_both() -> None:
    mapping = plain(apart({"decider": {"policy": "long_prompt", "uncached_tokens": 50}}))
    mapping["deployment"]["pools"]["both"] = {"gpu": "h100-sxm", "cost_model": LAW, "memory": {"kv_blocks": 1000}}
    record = serve(parse_scenario(json.dumps(mapping)), [(0, 60, 2), (0, 40, 2)]).record
    assert record.requests.replica.tolist() == [1, 2]
    assert [pool.name for pool in record.pools] == ["prefill", "decode", "both"]


# --- both engines, all settings


HANDOVERS: dict[str, dict[str, Any]] = {
    "pull": {},
    "push": {"mode": "push", "first_token": "transfer"},
    "layers": {"mode": "push", "overlap": "layerwise", "group_setup": "0s", "first_token": "prefill"},
    "failing": {"failure_rate": 0.2, "max_retries": 1, "setup": "3ms", "max_concurrent": 2},
    "some": {"decider": {"policy": "long_prompt", "uncached_tokens": 60}, "first_token": "transfer"},
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", HANDOVERS)
def test_the_lazy_engine_equals_the_plain_one(name: str, asynchronous: bool) -> None:
    draw = np.random.default_rng(len(name))
    count = 150
    times = np.cumsum(draw.exponential(60, count)).astype(int)
    requests = list(
        zip(times.tolist(), draw.integers(1, 120, count).tolist(), draw.integers(1, 30, count).tolist(), strict=True)
    )
    pool = {"scheduler": {"async_scheduling": asynchronous, "max_num_batched_tokens": 64, "max_num_seqs": 6}}
    tight = pool | {"memory": {"kv_blocks": 14}, "replicas": 2}
    records: list[RunRecord] = []
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        keys = {"run": {"engine": engine, "checks": checks}}
        records.append(serve(apart(HANDOVERS[name], prefill=tight, decode=tight, **keys), requests).record)
    slow, *others = records
    assert slow.requests.preemptions.sum() > 0
    for other in others:
        assert token_time_digest(other) == token_time_digest(slow)
        for field in FIELDS:
            assert np.array_equal(getattr(other.requests, field), getattr(slow.requests, field)), field
        for field in ("arrived_ns", "joined_ns", "bytes", "failures", "recomputed"):
            assert np.array_equal(getattr(other.transfers, field), getattr(slow.transfers, field)), field


@pytest.mark.parametrize("seed", [9, 15, 25, 40, 41])
def test_the_engines_find_the_same_after_preemptions(seed: int) -> None:
    """With prefix caching, the first token that a joining sequence computes is known, and its block found at once."""
    draw, count = np.random.default_rng(seed), 40
    times = np.cumsum(draw.exponential(40, count)).astype(int) * MS
    prompts, outputs = draw.integers(1, 120, count), draw.integers(1, 40, count)
    prefixes = draw.integers(-1, 3, count)
    shared = np.where(prefixes >= 0, np.minimum(prompts, 48), 0)
    scheduler = {"async_scheduling": bool(seed % 2), "enable_prefix_caching": True, "max_num_batched_tokens": 64}
    tight = {"scheduler": scheduler | {"max_num_seqs": 6}, "memory": {"kv_blocks": 12}}
    handover = {"decider": {"policy": "long_prompt", "uncached_tokens": 50}, "failure_rate": 0.2}
    lengths = prompts.tolist(), outputs.tolist()
    table = request_table(times.tolist(), *lengths, prefix_id=prefixes.tolist(), prefix_tokens=shared.tolist())
    slow, fast, unchecked = (
        run(apart(handover, prefill=tight, decode=tight, run={"engine": engine, "checks": checks}), table).record
        for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False))
    )
    assert slow.requests.preemptions.sum() > 0
    for other in (fast, unchecked):
        assert token_time_digest(slow) == token_time_digest(other)
        assert np.array_equal(slow.transfers.bytes, other.transfers.bytes)
        for field in ("cached_tokens", "recovered_tokens"):
            assert np.array_equal(getattr(slow.requests, field), getattr(other.requests, field)), field


@pytest.mark.parametrize("name", ["pull", "layers", "failing"])
def test_a_policy_that_looks_at_each_sequence_can_take_both_parts(name: str) -> None:
    draw = np.random.default_rng(7)
    requests = [(int(20 * i), int(draw.integers(1, 90)), int(draw.integers(1, 20))) for i in range(80)]
    pool = {"scheduler": {"scheduling_policy": "priority", "max_num_seqs": 5}, "memory": {"kv_blocks": 14}}
    record = serve(apart(HANDOVERS[name], prefill=pool, decode=pool), requests).record
    assert record.requests.emitted_tokens.tolist() == [outputs for _, _, outputs in requests]


# --- mistakes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"handover": {"mode": "push", "overlap": "layerwise", "max_concurrent": 1}},
            "cannot be combined with overlap: layerwise",
        ),
        ({"prefill": {"model": "llama-3.1-70b"}}, "must serve one model with one KV type"),
        ({"decode": {"model": {"name": "llama-3.1-8b", "kv_cache": "fp8"}}}, "must serve one model with one KV type"),
    ],
)
def test_kv_that_the_other_side_cannot_use_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        serve(apart(**change), [(0, 40, 3)])


def test_a_first_token_at_the_transfer_has_a_row_of_its_own_in_every_batch() -> None:
    ends = []
    for scheduler in ({}, {"scheduling_policy": "priority"}):
        asked = apart({"first_token": "transfer"}, decode={"scheduler": scheduler})
        record = serve(asked, [(0, 40, 3), (1, 60, 1), (30, 20, 5)]).record
        check(record)
        ends.append((record.requests.first_token_ns.tolist(), record.requests.finish_ns.tolist()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_prompt_of_one_token_has_nothing_to_send(mode: str) -> None:
    """The decode side computes it itself, as a prompt: 10 + 1 ms on either side, and one decode."""
    finished = serve(apart({"mode": mode, "first_token": "decode"}), [(0, 1, 2)])
    assert ms(finished.record.requests.finish_ns) == [32]


def test_books_hold_when_kv_that_prompts_share_never_comes() -> None:
    """Blocks are given back that were reserved for a shared prefix, and never filled."""
    count = 40
    table = request_table(
        [i * 10 * MS for i in range(count)],
        [200] * count,
        [20] * count,
        prefix_id=[i % 3 for i in range(count)],
        prefix_tokens=[150] * count,
    )
    caching = {"scheduler": {"enable_prefix_caching": True}, "memory": {"kv_blocks": 40}}
    record = run(apart({"failure_rate": 0.4}, decode=caching), table).record
    check(record)
    assert record.transfers.recomputed.sum() > 5
    assert record.requests.emitted_tokens.tolist() == [20] * count


def test_what_is_handed_over_waits_for_all_blocks_that_it_could_need_where_nothing_is_preempted() -> None:
    """TensorRT-LLM's GUARANTEED_NO_EVICT: 14 blocks of 16 tokens; a request of 30 + 60 tokens could need 6."""
    requests = [(0, 30, 60)] * 5
    scheduler = {"policy": "tensorrt_llm", "max_num_batched_tokens": 1000, "max_model_len": 1000}
    decode = {"scheduler": scheduler, "memory": {"kv_blocks": 14}}
    record = serve(apart({"first_token": "transfer"}, decode=decode), requests).record
    assert record.requests.preemptions.sum() == 0
    assert record.steps.running[record.rows(record.pools[1])].max() == 2
    greedy = decode | {"scheduler": scheduler | {"capacity_scheduler_policy": "MAX_UTILIZATION"}}
    assert serve(apart({"first_token": "transfer"}, decode=greedy), requests).record.requests.preemptions.sum() > 0


def test_steps_of_pools_apart_are_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--steps cannot record prefill and decode pools"):
        execute(prepare(apart()), steps=tmp_path / "steps")
