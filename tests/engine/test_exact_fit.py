"""Requests that fill the KV pool to the last token: they end. With one token more they are refused; nothing stalls."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.results.columns import Refusal, Status
from simulator.results.integrity import check
from simulator.scenario import Scenario
from tests.engine.test_handover import apart
from tests.helpers import PLACEHOLDER, request_table, run, scenario

POOL_TOKENS = 20
#: Five blocks of four tokens; the context is longer (`LIMITS`).
MEMORY = {"block_size": 4, "kv_blocks": 5}
LIMITS = {"max_num_seqs": 4, "max_model_len": 64, "max_num_batched_tokens": 64}
POLICIES: dict[str, dict[str, Any]] = {
    "vllm": {"policy": "vllm"},
    "vllm, asynchronous": {"policy": "vllm", "async_scheduling": True, "watermark": 0.4},
    "sglang": {"policy": "sglang", "enable_prefix_caching": False},
    "tensorrt_llm": {"policy": "tensorrt_llm"},
    "tensorrt_llm, chunks": {"policy": "tensorrt_llm", "enable_chunked_context": True, "max_num_batched_tokens": 8},
    "tensorrt_llm, static": {"policy": "tensorrt_llm", "capacity_scheduler_policy": "STATIC_BATCH"},
    "tensorrt_llm, most": {"policy": "tensorrt_llm", "capacity_scheduler_policy": "MAX_UTILIZATION"},
    "static": {"policy": "static"},
    "orca": {"policy": "orca"},
    "prefill_first": {"policy": "prefill_first", "watermark": 0.4},
    "sarathi": {"policy": "sarathi", "watermark": 0.4},
    "distserve": {"policy": "distserve"},
}
#: Whose admission counts blocks to completion: the KV of the last token, too, which no step computes.
TO_COMPLETION = {"tensorrt_llm", "tensorrt_llm, chunks", "tensorrt_llm, static"}
HANDOVERS: dict[str, tuple[dict[str, Any], ...]] = {
    "both": ({},),
    "decode": ({}, {"first_token": "prefill"}, {"first_token": "transfer"}),
    "prefill": ({}, {"mode": "push", "overlap": "layerwise"}),
}
CASES = [
    (name, role)
    for role in HANDOVERS
    for name in POLICIES
    if (name, role) not in {("distserve", "both"), ("static", "decode"), ("tensorrt_llm, static", "decode")}
]


def asked(role: str, pool: dict[str, Any], handover: dict[str, Any]) -> Scenario:
    """Return a deployment with the pool in that role; other pools have enough memory."""
    if role == "both":
        return scenario(PLACEHOLDER, {"base": "1ms"}, run={"checks": True}, **pool)
    return apart(handover, **{role: pool})


@pytest.mark.parametrize("allocation", ["paged", "contiguous", "contiguous_exact"])
@pytest.mark.parametrize(("name", "role"), CASES)
def test_what_fits_exactly_is_served_and_one_token_more_is_refused(name: str, role: str, allocation: str) -> None:
    pool = {"scheduler": LIMITS | POLICIES[name], "memory": MEMORY | {"allocation": allocation}}
    most = POOL_TOKENS if name in TO_COMPLETION else POOL_TOKENS + 1
    for handover in HANDOVERS[role]:
        for tokens in (most - 1, most, most + 1):
            prompt = tokens - 1 if role == "prefill" else 17
            table = request_table([0, 0, 0, 0], [1, prompt, prompt, prompt], [2, *[tokens - prompt] * 3])
            record = run(asked(role, pool, handover), table).record
            check(record)
            status, refusal = (Status.COMPLETED, Refusal.NONE) if tokens <= most else (Status.REJECTED, Refusal.KV_POOL)
            assert record.requests.status.tolist() == [Status.COMPLETED, *[status] * 3]
            assert record.requests.refusal.tolist() == [Refusal.NONE, *[refusal] * 3]
