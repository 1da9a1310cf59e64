"""Replicas whose layers are cut into stages: lanes, their memory and their times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.results.segments import token_time_digest
from simulator.study.prepare import prepare
from simulator.study.run import execute
from simulator.workload.requests import RequestTable
from tests.helpers import PLACEHOLDER, request_table, run, scenario

STEP_MS = 40


def simulate(table: RequestTable, stages: int = 4, law: dict[str, Any] | None = None, **keys: Any) -> RunRecord:
    pool = {"pipeline_parallel": stages} | keys.pop("pool", {})
    return run(scenario(PLACEHOLDER, law or {"base": f"{STEP_MS}ms"}, pool=pool, **keys), table).record


def ends_ms(record: RunRecord) -> list[float]:
    return (record.requests.finish_ns / 1e6).tolist()


def test_lanes_decode_side_by_side_a_stage_apart() -> None:
    outputs = 50
    record = simulate(request_table([0] * 4, [1] * 4, [outputs] * 4))
    assert record.cores == 4
    assert record.gpus == 4
    assert ends_ms(record) == [outputs * STEP_MS + lane * STEP_MS / 4 for lane in range(4)]


def test_a_single_stream_gains_nothing() -> None:
    table = request_table([0], [1], [50])
    assert ends_ms(simulate(table)) == ends_ms(simulate(table, stages=1)) == [50 * STEP_MS]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_full_pipeline_has_the_throughput_of_as_many_gpus(stages: int) -> None:
    """Per step and lane one request of one token: p lanes end p of them in p stage times, after a start of p - 1."""
    rounds = 100
    count = stages * rounds
    record = simulate(request_table([0] * count, [1] * count, [1] * count), stages, scheduler={"max_num_seqs": 1})
    assert max(ends_ms(record)) == pytest.approx((count + stages - 1) * STEP_MS / stages)


def test_lanes_share_the_memory_of_the_replica() -> None:
    memory = {"block_size": 16, "kv_blocks": 41}
    record = simulate(request_table([0, 0], [161, 145], [1, 1]), memory=memory)
    assert record.pools[0].kv_blocks == 10
    assert record.requests.refusal.tolist() == [2, 0]  # 11 blocks are more than a lane has, 10 are not


def test_too_few_blocks_for_the_lanes() -> None:
    with pytest.raises(InputError, match=r"kv_blocks: 3 blocks are too few for the 4 lanes"):
        simulate(request_table([0], [1], [1]), memory={"kv_blocks": 3})


def test_asynchronous_scheduling_is_refused() -> None:
    with pytest.raises(InputError, match=r"pipeline_parallel: needs scheduler.async_scheduling: false"):
        simulate(request_table([0], [1], [1]), scheduler={"async_scheduling": True})


def test_dense_ranks_are_pipelines_of_their_own() -> None:
    table = request_table([0] * 8, [1] * 8, [50] * 8)
    record = simulate(table, pool={"data_parallel": 2})
    assert (record.cores, record.gpus) == (8, 8)
    assert ends_ms(record) == 2 * [50 * STEP_MS + lane * STEP_MS / 4 for lane in range(4)]


def test_every_engine_gives_the_same_times() -> None:
    """Busy lanes, idle ones, prompts in chunks, memory that runs short: coasting must not pass another lane's step."""
    generator = np.random.default_rng(5)
    arrivals = np.cumsum(generator.exponential(3e7, 120)).astype(np.int64)
    prompts, outputs = generator.integers(1, 400, 120), generator.integers(1, 60, 120)
    table = request_table(arrivals.tolist(), prompts.tolist(), outputs.tolist())
    records = []
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        records.append(
            simulate(
                table,
                law={"base": "5ms", "per_token": "40us", "host": "1ms"},
                memory={"kv_blocks": 160},
                scheduler={"max_num_batched_tokens": 256},
                run={"engine": engine, "checks": checks},
            )
        )
        check(records[-1])
    assert records[0].requests.preemptions.sum() > 0
    assert len({token_time_digest(record) for record in records}) == 1


def test_a_roofline_is_cut_into_stages() -> None:
    """On four stages Llama 70B in FP8 decodes at about the latency of one GPU, and leaves memory for more than 4 x."""
    workload = {"arrivals": {"process": "all_at_once"}, "requests": 8, "prompt_tokens": 100, "output_tokens": 20}
    runs = []
    for stages in (1, 4):
        pool = {"pipeline_parallel": stages, "cost_model": {"kind": "roofline", "host": "none"}, "memory": {}}
        model = {"name": "llama-3.1-70b", "weights": "fp8"}
        asked = scenario(
            workload, {}, pool=pool, model=model, scheduler={"max_num_batched_tokens": 512, "max_model_len": 8192}
        )
        runs.append(execute(prepare(asked)))
    alone, staged = (finished.summary["latency"]["tpot_ms"]["p50"] for finished in runs)
    assert alone < staged < 1.1 * alone
    whole, lane = (finished.record.pools[0].kv_blocks for finished in runs)
    assert lane > whole
