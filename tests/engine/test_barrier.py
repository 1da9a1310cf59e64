"""Data-parallel ranks that step together: the times of their steps, and results that do not change."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cost_models import FrontEnd
from simulator.errors import InputError
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from simulator.results.segments import token_time_digest
from simulator.scenario.handover import Handover
from simulator.scenario.schema import Deployment
from simulator.study.prepare import prepare
from simulator.study.run import execute
from simulator.workload.requests import RequestTable
from tests.helpers import PLACEHOLDER, request_table, run, scenario

MOE = "deepseek-r1"
LAW = {"base": "10ms", "per_prefill_token": "1ms"}


def simulate(
    table: RequestTable, ranks: int = 2, law: dict[str, Any] | None = None, model: str = MOE, **keys: Any
) -> RunRecord:
    pool = {"data_parallel": ranks} | keys.pop("pool", {})
    return run(scenario(PLACEHOLDER, law or LAW, pool=pool, model=model, **keys), table).record


def ms(times_ns: np.ndarray) -> list[float]:
    return (times_ns / 1e6).tolist()


def steps_of(record: RunRecord, rank: int, column: str) -> np.ndarray:
    first, last = record.steps.offsets[rank : rank + 2]
    values: np.ndarray = getattr(record.steps, column)[first:last]
    return values


def random_table(count: int, mean_gap_ns: float, seed: int = 3) -> RequestTable:
    generator = np.random.default_rng(seed)
    arrivals = np.cumsum(generator.exponential(mean_gap_ns, count)).astype(np.int64)
    prompts, outputs = generator.integers(1, 60, count), generator.integers(1, 50, count)
    return request_table(arrivals.tolist(), prompts.tolist(), outputs.tolist())


def test_a_long_prompt_of_one_rank_holds_up_the_other() -> None:
    """Round robin: request 0 decodes on rank 0 when request 1, of 100 tokens, comes to rank 1."""
    record = simulate(request_table([0, 15_000_000], [1, 100], [5, 2]))
    assert ms(steps_of(record, 0, "end_ns")) == [11, 21, 131, 141, 151]
    assert ms(steps_of(record, 1, "end_ns")) == [131, 141]
    assert ms(record.requests.finish_ns) == [151, 141]


def test_dense_ranks_do_not_wait_for_each_other() -> None:
    table = random_table(60, 2e7)
    ranks = simulate(table, ranks=3, model="llama-3.1-8b")
    replicas = simulate(table, ranks=1, model="llama-3.1-8b", replicas=3)
    assert token_time_digest(ranks) == token_time_digest(replicas)
    assert (ranks.cores, ranks.gpus) == (replicas.cores, replicas.gpus) == (3, 3)
    assert (ranks.pools[0].replicas, replicas.pools[0].replicas) == (1, 3)


def test_ranks_with_the_same_work_are_as_fast_as_apart() -> None:
    arrivals = [time for time in range(0, 2_000_000_000, 70_000_000) for _ in range(4)]
    table = request_table(arrivals, [20] * len(arrivals), [9] * len(arrivals))
    together = simulate(table, ranks=4)
    apart = simulate(table, ranks=4, model="llama-3.1-8b")
    assert token_time_digest(together) == token_time_digest(apart)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_begin_and_end_together(asynchronous: bool) -> None:
    record = simulate(random_table(150, 1.5e7), ranks=4, scheduler={"async_scheduling": asynchronous})
    check(record)
    places: dict[int, tuple[int, int]] = {}
    for rank in range(4):
        columns = (steps_of(record, rank, name).tolist() for name in ("start_ns", "sched_ns", "end_ns"))
        for start, formed, end in zip(*columns, strict=True):
            assert places.setdefault(start, (formed, end)) == (formed, end)
    times = sorted((start, end) for start, (_, end) in places.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(times))
    assert len(places) < len(record.steps.end_ns)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_engine_gives_the_same_times(asynchronous: bool) -> None:
    records = []
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        records.append(
            simulate(
                random_table(200, 1e7),
                ranks=3,
                law={"base": "5ms", "per_token": "100us", "per_context_token": "1us", "host": "2ms"},
                memory={"kv_blocks": 10},
                scheduler={"max_num_batched_tokens": 64, "async_scheduling": asynchronous},
                run={"engine": engine, "checks": checks},
            )
        )
        check(records[-1])
    assert records[0].requests.preemptions.sum() > 0
    assert len({token_time_digest(record) for record in records}) == 1


def test_asynchronous_scheduling_hides_the_cpu() -> None:
    table = request_table([0] * 4, [1] * 4, [50] * 4)
    law = {"base": "10ms", "host": "4ms"}
    gaps = {}
    for asynchronous in (False, True):
        record = simulate(table, ranks=4, law=law, scheduler={"async_scheduling": asynchronous})
        gaps[asynchronous] = set(ms(np.diff(steps_of(record, 3, "end_ns"))))
    assert gaps == {False: {14.0}, True: {10.0}}


def test_ranks_rest_and_wake_by_way_of_the_front_end() -> None:
    """A request is 3 ms at the front end, both if all ranks are idle and if another one works."""
    arrivals = [0, 100_000_000, 104_000_000]
    prepared = prepare(scenario(PLACEHOLDER, LAW, pool={"data_parallel": 2}, model=MOE))
    (pool,) = prepared.resolved.pools
    service = pool.service._replace(front_end=FrontEnd(request_ns=3_000_000))
    resolved = prepared.resolved._replace(pools=(pool._replace(service=service),))
    table = request_table(arrivals, [1, 1, 1], [2, 2, 2])
    record = execute(prepared._replace(table=table, resolved=resolved)).record
    assert ms(record.requests.scheduled_ns) == [3, 103, 114]  # the last one at the end of the step in flight
    assert ms(record.requests.finish_ns) == [24, 125, 135]


def test_the_prefill_interval_counts_the_steps_of_all_ranks() -> None:
    """Interval 3, from the first step after idle time: prompts wait for step 3 on either rank, though rank 1 has
    computed
    none yet, and less long if no request decodes there."""
    table = request_table([0, 5_000_000, 15_000_000, 25_000_000], [2, 2, 2, 2], [9, 9, 2, 2])
    record = simulate(table, scheduler={"prefill_schedule_interval": 3})
    assert ms(record.requests.scheduled_ns) == [0, 12, 34, 34]


def test_behind_a_step_that_only_preempts_a_rank_forms_nothing() -> None:
    """Rank 0 has three blocks. Its second sequence lacks one for its 17th token while the first one, whose last token
    is in flight, holds two: the second is preempted, in a separate step. Steps of 10 ms continue on rank 1. The next
    one is formed when the first sequence has ended, still without rank 0; the one after it has the second again."""
    table = request_table([0] * 4, [17, 4, 14, 4], [3, 20, 6, 1])
    scheduler = {"version": "none", "async_scheduling": True, "max_model_len": 100}
    record = simulate(table, law={"base": "10ms"}, memory={"kv_blocks": 3}, scheduler=scheduler, run={"checks": True})
    assert record.preemptions.request.tolist() == [2]
    assert ms(record.preemptions.preempted_ns) == [20]
    assert ms(steps_of(record, 0, "start_ns")) == [0, 10, 20, 30, 50, 60, 70]
    assert ms(steps_of(record, 1, "start_ns"))[:8] == [0, 10, 20, 30, 40, 50, 60, 70]


def test_pipelines_of_ranks_that_step_together_are_refused() -> None:
    with pytest.raises(InputError, match=r"pipeline_parallel: deepseek-r1 has experts"):
        simulate(request_table([0], [1], [1]), pool={"pipeline_parallel": 2})


@pytest.mark.parametrize("overlap", ["none", "layerwise"])
@pytest.mark.parametrize("first_token", ["prefill", "decode", "transfer"])
def test_ranks_of_prefill_and_decode_pools(overlap: str, first_token: str) -> None:
    """Every request is transferred, in both engines, and all of them end; decode ranks still step together."""
    records = []
    table = random_table(120, 1e7)
    for engine, checks in (("explicit", True), ("lazy", True), ("lazy", False)):
        asked = scenario(
            PLACEHOLDER,
            {"base": "5ms", "per_token": "100us"},
            scheduler={"max_num_batched_tokens": 64},
            model=MOE,
            run={"engine": engine, "checks": checks},
        )
        main = asked.deployment.pools["main"]
        pools = {
            role: dataclasses.replace(main, role=role, replicas=replicas, data_parallel=2)
            for role, replicas in (("prefill", 2), ("decode", 1))
        }
        mode = "push" if overlap == "layerwise" else "pull"
        handover = Handover(mode=mode, overlap=overlap, first_token=first_token)  # type: ignore[arg-type]
        asked = dataclasses.replace(asked, deployment=Deployment(pools, handover))
        records.append(run(asked, table).record)
        check(records[-1])
    assert len({token_time_digest(record) for record in records}) == 1
    record = records[0]
    assert len(record.transfers.request) == (record.requests.finish_ns > 0).sum() == 120
    assert set(record.transfers.source) == {0, 1, 2, 3}
    assert set(record.transfers.target) == {4, 5}
    together = np.intersect1d(steps_of(record, 4, "start_ns"), steps_of(record, 5, "start_ns"))
    assert len(together) > 0.5 * len(steps_of(record, 4, "start_ns"))
