"""Pipelines and ranks in lockstep with every batch policy: equal times by every engine, and no request is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.results.integrity import check
from simulator.results.segments import token_time_digest
from tests.helpers import PLACEHOLDER, request_table, run, scenario

POLICIES = (
    {"policy": "static", "max_num_seqs": 4},
    {"policy": "static", "max_num_seqs": 4, "padded": True},
    {"policy": "orca"},
    {"policy": "prefill_first"},
    {"policy": "sarathi"},
    {"policy": "sarathi", "batching": "alternating"},
    {"policy": "vllm", "enable_prefix_caching": True},
    {"policy": "vllm", "max_num_batched_tokens": 64},
)


@pytest.mark.parametrize("pool", [{"pipeline_parallel": 3}, {"data_parallel": 3}], ids=["lanes", "ranks"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
def test_every_engine_gives_the_same_times(policy: dict[str, Any], pool: dict[str, int]) -> None:
    generator = np.random.default_rng(7)
    arrivals = np.cumsum(generator.exponential(8e6, 100)).astype(np.int64).tolist()
    prompts, outputs = generator.integers(2, 150, 100).tolist(), generator.integers(1, 40, 100).tolist()
    table = request_table(arrivals, prompts, outputs)
    records = []
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        asked = scenario(
            PLACEHOLDER,
            {"base": "5ms", "per_token": "50us", "per_context_token": "1us", "host": "1ms"},
            scheduler={"max_model_len": 1000, "max_num_batched_tokens": 1000} | policy,
            pool=pool,
            model="deepseek-r1",
            run={"engine": engine, "checks": checks},
        )
        records.append(run(asked, table).record)
        check(records[-1])
    assert len({token_time_digest(record) for record in records}) == 1
    assert (records[0].requests.finish_ns > 0).all()
