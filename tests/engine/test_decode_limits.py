"""Requests that join a decode pool after a transfer: the policy does not admit them, but its limits apply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.results.columns import Status
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.scheduling.policies import POLICIES
from simulator.workload.requests import RequestTable
from tests.engine.test_handover import MS, TOKEN_BYTES, apart
from tests.engine.test_lazy_equals_explicit import assert_same
from tests.helpers import request_table, run

#: Fast prompts, a fast link, and slow decodes: everything piles up on the decode side.
FAST = {"cost_model": {"kind": "linear", "base": "1ms"}}
LINKS = {"placement": "apart", "network": {"bandwidth": f"{TOKEN_BYTES * 10**6}B/s", "latency": "0ms"}}
DECODING = [policy for policy in POLICIES if policy != "static"]


def table(requests: int = 12, prompt: int = 32, output: int = 32) -> RequestTable:
    return request_table([0] * requests, [prompt] * requests, [output] * requests)


def decoded(scheduler: dict[str, Any], requests: RequestTable, engine: str = "auto", **pool: Any) -> RunRecord:
    """Return the run with this decode pool and a prefill pool of vLLM."""
    decode = {"scheduler": scheduler, "cost_model": {"kind": "linear", "base": "5ms"}} | pool
    prefill = FAST | {"scheduler": {"version": "none", "max_num_batched_tokens": 10**6, "max_model_len": 10**6}}
    asked = apart({}, prefill, decode, links=LINKS, run={"checks": True, "engine": engine})
    record = run(asked, requests).record
    check(record)
    assert (record.requests.status == Status.COMPLETED).all()
    return record


def on_the_decode_side(record: RunRecord, column: str) -> Any:
    return np.asarray(getattr(record.steps, column))[record.steps.offsets[1] :]


@pytest.mark.parametrize("engine", ["explicit", "auto"])
@pytest.mark.parametrize("policy", DECODING)
def test_no_more_run_than_the_policy_lets_run(policy: str, engine: str) -> None:
    settings = {"policy": policy, "max_num_seqs": 3}
    if policy == "sglang" and engine == "explicit":
        settings["enable_prefix_caching"] = False
    record = decoded(settings, table(), engine)
    assert on_the_decode_side(record, "running").max() == 3


@pytest.mark.parametrize("engine", ["explicit", "auto"])
def test_no_more_are_active_than_may_be(engine: str) -> None:
    """Two at a time of twelve with 31 tokens to compute there: 186 steps of 5 ms behind the first prompts."""
    settings = {"version": "none", "max_num_seqs": 256, "max_num_active_seqs": 2}
    record = decoded(settings, table(), engine)
    assert on_the_decode_side(record, "running").max() == 2
    assert len(on_the_decode_side(record, "running")) == 12 * 32 // 2


@pytest.mark.parametrize("engine", ["explicit", "auto"])
@pytest.mark.parametrize("policy", ["vllm", "tensorrt_llm", "sarathi"])
def test_no_step_has_more_tokens_than_its_budget(policy: str, engine: str) -> None:
    """If decodes count against the budget, it limits joins as it limits the admission of a unified pool."""
    settings = {"policy": policy, "max_num_batched_tokens": 4}
    if policy == "tensorrt_llm":
        settings["enable_chunked_context"] = True
    record = decoded(settings, table(), engine)
    tokens = on_the_decode_side(record, "decodes") + on_the_decode_side(record, "prefill_tokens")
    assert tokens.max() == 4
    assert on_the_decode_side(record, "running").max() == 4


def test_a_budget_has_room_for_drafts_too() -> None:
    """Five tokens each: of a budget of twelve the third gets two."""
    drafts = {"method": "mtp", "num_speculative_tokens": 4, "pass_time": "0ms"}
    drafts["acceptance"] = {"law": "iid", "alpha": 0.5}
    settings = {"version": "none", "max_num_batched_tokens": 12}
    record = decoded(settings, table(), speculation=drafts)
    assert on_the_decode_side(record, "running").max() == 3


@pytest.mark.parametrize("engine", ["explicit", "auto"])
@pytest.mark.parametrize("policy", ["vllm", "prefill_first", "sarathi"])
def test_a_watermark_stays_free_while_something_runs(policy: str, engine: str) -> None:
    """Of 40 blocks 19 stay free, or 20, since vLLM counts its own: seven sequences of three blocks come in, or six, not
    thirteen. Each has four in the end."""
    settings = {"policy": policy, "watermark": 0.49, "max_num_seqs": 64}
    if policy == "vllm":
        settings["version"] = "none"
    record = decoded(settings, table(20, 48, 6), engine, memory={"kv_blocks": 40})
    assert on_the_decode_side(record, "kv_used").max() == (24 if policy == "vllm" else 28)
    assert not record.requests.preemptions.any()


@pytest.mark.parametrize("first_token", ["prefill", "transfer", "decode"])
@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_blocks_of_one_token(policy: str, first_token: str) -> None:
    """SGLang's own: the token that a joining sequence computes first has no block before its first step."""
    settings: dict[str, Any] = {"policy": policy}
    if policy == "vllm":
        settings["version"] = "vllm-0.33"
    shared = request_table(
        [0, 0, 200 * MS, 300 * MS], [16, 20, 16, 24], [1, 5, 4, 9], prefix_id=[0] * 4, prefix_tokens=[16, 16, 16, 16]
    )
    records = []
    for engine in ("auto", "explicit") if policy == "vllm" else ("auto",):
        decode = {"scheduler": settings, "memory": {"block_size": 1, "kv_blocks": 200}}
        prefill = {"scheduler": {"version": "none"}}
        asked = apart({"first_token": first_token}, prefill, decode, run={"checks": True, "engine": engine})
        if policy == "vllm" and first_token == "transfer":
            continue  # which the complete batch, that this needs, does not follow
        records.append(run(asked, shared).record)
        check(records[-1])
        assert (records[-1].requests.status == Status.COMPLETED).all()
        assert records[-1].requests.cached_tokens[3] >= 15
    if len(records) == 2:
        assert_same(*records)
