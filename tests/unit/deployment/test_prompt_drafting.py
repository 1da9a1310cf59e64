"""The drafter's KV of transferred prompts: the pool that computes it, memory, time and bytes on the link."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models import BatchShape, SpeculativeCost, load_model, mtp_head
from simulator.deployment.resolve import ResolvedPool, resolve
from simulator.errors import InputError
from simulator.scenario import Scenario, parse_scenario
from simulator.study.prepare import prepare
from simulator.study.run import execute

DRAFT = {"method": "draft_model", "model": "llama-3.1-8b"}
PROMPT = BatchShape(chunks=((1_000, 0),), new_requests=1, sampled=1)
HEADS = [{"method": "eagle"}, {"method": "eagle3"}, {"method": "mtp"}, DRAFT]


def scenario(*speculations: dict[str, Any] | None, prefill: dict[str, Any] | None = None, **decode: Any) -> Scenario:
    """Return a prefill pool, and a decode pool for each of `speculations`; `decode` are further keys of those."""
    limits = {"max_model_len": 8192}
    pools = {"prefill": {"gpu": "h100-sxm", "role": "prefill", "tensor_parallel": 4, "scheduler": limits}}
    pools["prefill"] |= prefill or {}
    for number, speculation in enumerate(speculations):
        pool = {"gpu": "h100-sxm", "role": "decode", "tensor_parallel": 4, "scheduler": limits} | decode
        if speculation is not None:
            drafts = {"num_speculative_tokens": 3, "acceptance": {"law": "iid", "alpha": 0.7}} | speculation
            pool["speculation"] = drafts
        pools[f"decode {number}"] = pool
    work = {"arrivals": {"process": "all_at_once"}, "requests": 4, "prompt_tokens": 1000, "output_tokens": 20}
    document = {"name": "test", "model": "llama-3.1-70b", "workload": work, "deployment": {"pools": pools}}
    return parse_scenario(json.dumps(document))


def pools_of(*speculations: dict[str, Any] | None, **keys: Any) -> tuple[ResolvedPool, ...]:
    return resolve(scenario(*speculations, **keys)).pools


def reasons(*speculations: dict[str, Any] | None, **keys: Any) -> list[str]:
    notes = resolve(scenario(*speculations, **keys)).notes
    return [note.text for note in notes if note.code == "drafter_kv_not_computed"]


@pytest.mark.parametrize("speculation", HEADS)
def test_a_prefill_pool_computes_and_holds_what_the_decode_pool_drafts_with(speculation: dict[str, Any]) -> None:
    (prefill, decode), (plain, _) = pools_of(speculation), pools_of(None)
    cost = prefill.service.cost
    assert isinstance(cost, SpeculativeCost)
    step = cost.step_cost(PROMPT)
    assert step.device_ns - step.draft_ns == plain.service.cost.step_cost(PROMPT).device_ns
    assert step.draft_ns == cost.proposer.draft_ns(PROMPT) > 0
    for pool in (prefill, decode):
        assert pool.capacity is not None
        assert pool.capacity.draft_bytes > 0
        drafted = 4 * pool.capacity.draft_token_bytes
        assert pool.service.kv_token_bytes == plain.service.kv_token_bytes + drafted
    assert prefill.service.kv_blocks < plain.service.kv_blocks
    assert reasons(speculation) == []


@pytest.mark.parametrize("speculation", [None, {"method": "ngram"}, {"method": "medusa"}])
def test_without_kv_of_a_drafter_nothing_changes(speculation: dict[str, Any] | None) -> None:
    prefill, plain = pools_of(speculation)[0], pools_of(None)[0]
    assert not isinstance(prefill.service.cost, SpeculativeCost)
    assert prefill.service.kv_token_bytes == plain.service.kv_token_bytes
    assert prefill.capacity == plain.capacity
    assert reasons(speculation) == []


@pytest.mark.parametrize(
    ("speculations", "prefill", "why"),
    [
        (({"method": "eagle"}, {"method": "eagle3"}), {}, "different drafters"),
        ((DRAFT | {"gpu": "h100-sxm"},), {}, "GPUs of its own"),
        (({"method": "eagle"},), {"cost_model": {"kind": "linear", "base": "9ms"}}, "linear cost model"),
    ],
)
def test_where_it_is_not_computed_a_note_says_why_and_nothing_is_charged(
    speculations: tuple[dict[str, Any], ...], prefill: dict[str, Any], why: str
) -> None:
    (text,) = reasons(*speculations, prefill=prefill)
    assert why in text
    plain = pools_of(None)[0].service.kv_token_bytes
    for pool in pools_of(*speculations, prefill=prefill):
        assert pool.service.kv_token_bytes == plain
    assert not isinstance(pools_of(*speculations, prefill=prefill)[0].service.cost, SpeculativeCost)


def test_pools_that_draft_with_one_drafter_or_none_share_prefill_pools() -> None:
    prefill, first, second, plain = pools_of({"method": "eagle"}, {"method": "eagle", "disable_by_batch_size": 9}, None)
    sizes = [pool.service.kv_token_bytes for pool in (prefill, first, second, plain)]
    assert sizes[0] == sizes[1] == sizes[2] > sizes[3]


def test_a_draft_model_is_on_no_more_gpus_than_a_prefill_rank_has() -> None:
    roomy = {"gpu": "h200-sxm", "tensor_parallel": 2}
    prefill, decode = pools_of(DRAFT, prefill=roomy)
    assert prefill.capacity is not None
    assert decode.capacity is not None
    assert prefill.capacity.draft_token_bytes == 2 * decode.capacity.draft_token_bytes
    asked = pools_of(DRAFT | {"tensor_parallel": 4}, prefill=roomy)[0]
    assert asked.capacity == prefill.capacity


def test_an_error_names_the_pool_that_asked() -> None:
    with pytest.raises(InputError, match=r"pools\.decode 0\.speculation\.model: unknown model"):
        pools_of(DRAFT | {"model": "llama-3.1-9b"})


def test_a_run_hands_the_layer_over_and_takes_longer_to_prefill() -> None:
    mtp, plain = (execute(prepare(scenario(each))).record for each in ({"method": "mtp"}, None))
    assert (mtp.requests.first_token_ns > plain.requests.first_token_ns).all()
    layer = mtp_head(load_model("llama-3.1-70b")).kv_bytes_per_token("auto", 4) * 4
    more = mtp.transfers.bytes - plain.transfers.bytes
    assert more.tolist() == [999 * layer] * 4  # the decode side computes the last token of a prompt
