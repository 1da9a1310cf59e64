"""SGLang's and TensorRT-LLM's policies: the lazy engine and the plain loop agree to the nanosecond, and runs conserve
requests and blocks at every step."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.results.columns import Status
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.workload.requests import RequestTable
from tests.engine.test_lazy_equals_explicit import WindowLaw, assert_equal, random_table
from tests.helpers import PLACEHOLDER, scenario


def both_ways(table: RequestTable, blocks: int, block_size: int, **scheduler: Any) -> RunRecord:
    """Return the run of the explicit batch, after comparison with the lazy one, with checks and, coasting, without."""
    settings = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "max_model_len": 512} | scheduler
    records = []
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        asked = scenario(
            PLACEHOLDER,
            {"base": "1ms"},
            scheduler=settings,
            memory={"block_size": block_size},
            run={"engine": engine, "checks": checks},
        )
        records.append(simulate(asked, table, [Service(WindowLaw(window=70), blocks, 512, 1)]))
        check(records[-1])
    assert_equal(*records)
    return records[0]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("slack", [0, 30])
@pytest.mark.parametrize(("blocks", "block_size"), [(60, 16), (700, 1), (5_000, 16)])
@pytest.mark.parametrize("mixed", [False, True])
def test_sglang(asynchronous: bool, slack: int, blocks: int, block_size: int, mixed: bool) -> None:
    for seed, gap_ns in ((1, 1e6), (2, 3e8)):
        record = both_ways(
            random_table(seed + slack, 80, gap_ns, 100, 250, slack),
            blocks,
            block_size,
            policy="sglang",
            max_num_batched_tokens=128,
            schedule_conservativeness=0.05,
            enable_prefix_caching=False,
            enable_mixed_chunk=mixed,
            async_scheduling=asynchronous,
        )
        assert (record.requests.status == Status.COMPLETED).all()
        if gap_ns < 1e7:
            assert blocks == 5_000 or record.requests.preemptions.any()
            assert mixed or len(record.steps.paused) > 30


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("capacity", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"])
@pytest.mark.parametrize("blocks", [60, 5_000])
def test_tensorrt_llm(asynchronous: bool, chunked: bool, capacity: str, blocks: int) -> None:
    for seed, gap_ns in ((3, 1e6), (4, 3e8)):
        record = both_ways(
            random_table(seed, 80, gap_ns, 200, 150, 20),
            blocks,
            16,
            policy="tensorrt_llm",
            capacity_scheduler_policy=capacity,
            enable_chunked_context=chunked,
            async_scheduling=asynchronous,
        )
        assert (record.requests.status == Status.COMPLETED).all()
        paused = record.requests.preemptions.sum()
        assert (
            paused > 5
            if (capacity, blocks) == ("MAX_UTILIZATION", 60) and gap_ns < 1e7
            else paused == 0 or blocks == 60
        )


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("blocks", [70, 2_000])
def test_sglang_finds_shared_prompts_under_pressure_too(asynchronous: bool, blocks: int) -> None:
    """There is no plain loop with prefix caching: conservation at every step, and that checks change nothing."""
    table = random_table(5, 120, 1e6, 100, 250)
    draw = np.random.default_rng(6)
    shared = dataclasses.replace(
        table,
        prompt_tokens=table.prompt_tokens + np.int32(64),
        prefix_id=draw.integers(0, 4, 120).astype(np.int32),
        prefix_tokens=np.full(120, 64, np.int32),
    )
    settings = {"policy": "sglang", "max_num_batched_tokens": 128, "schedule_conservativeness": 0.05}
    records = []
    for checks in (True, False):
        asked = scenario(
            PLACEHOLDER,
            {"base": "1ms"},
            scheduler=settings | {"async_scheduling": asynchronous},
            memory={"block_size": 16},
            run={"checks": checks},
        )
        records.append(simulate(asked, shared, [Service(WindowLaw(), blocks, 512, 1)]))
        check(records[-1])
    assert_equal(*records)
    requests = records[0].requests
    assert (requests.status == Status.COMPLETED).all()
    assert requests.cached_tokens.sum() > 64 * 60
    assert blocks == 2_000 or requests.preemptions.any()
