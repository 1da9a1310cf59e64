"""Recordings by `--steps`, replayed by `check-scheduler`, of every scheduler and cost model."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.engine.replay import ReplayRequest
from simulator.errors import InputError, StalledError
from simulator.recordings.check import check_scheduler
from simulator.recordings.simultaneous import with_ties
from simulator.results.integrity import check
from simulator.scenario.schedulers import VllmScheduler
from simulator.study.prepare import Prepared, prepare
from simulator.study.run import execute
from tests.helpers import PLACEHOLDER, request_table, scenario

WORKLOAD = {
    "arrivals": {"process": "gamma", "rate": 40, "cv": 2},
    "requests": 120,
    "prompt_tokens": {"distribution": "lognormal", "mean": 120, "cv": 1},
    "output_tokens": {"distribution": "geometric", "mean": 30},
    "prompt_pool": {"prompts": 30, "groups": 3, "shared_prefix_tokens": 64},
    "max_tokens": 200,
}
LINEAR = {"base": "5ms", "per_token": "20us", "per_context_token": "10ns"}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "version": {"version": "vllm-0.33"},
    "prefix caching": {"enable_prefix_caching": True},
    "priority": {"scheduling_policy": "priority", "async_scheduling": True},
    "interval": {"prefill_schedule_interval": 3},
    "least computed": {"preemption_victim": "least_computed"},
    "partial prefills": {"max_num_partial_prefills": 1, "long_prefill_token_threshold": 64},
    "preempted first": {"scheduling_policy": "priority", "preempted_first": True, "enable_prefix_caching": True},
    "cut at the context": {"context_overflow": "cut", "max_model_len": 300, "async_scheduling": True},
}


def prepared(scheduler: dict[str, Any], cost: dict[str, Any] | None = None, **keys: Any) -> Prepared:
    settings = {"max_num_batched_tokens": 256, "max_num_seqs": 48, "max_model_len": 4000} | scheduler
    asked = scenario(WORKLOAD, LINEAR | (cost or {}), scheduler=settings, memory={"kv_blocks": 75}, **keys)
    ready = prepare(asked)
    ranks = np.arange(len(ready.table)) % 3
    return ready._replace(table=dataclasses.replace(ready.table, extras={"priority": ranks}))


def assert_identical(folder: Path) -> None:
    verdict = check_scheduler(folder, checks=True)
    assert verdict.identical, verdict
    assert verdict.steps


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_recorded_run_is_replayed(name: str, tmp_path: Path) -> None:
    run = execute(prepared(SCHEDULERS[name], run={"checks": True}), steps=tmp_path)
    check(run.record)
    assert run.summary["engine"]["preemptions"]
    assert_identical(tmp_path / "0")
    assert json.loads((tmp_path / "0" / "config.json").read_text())["time"] != "recorded"


#: Schedulers of other engines; with whole prompts, the limits must hold the longest one.
WHOLE = {"max_num_batched_tokens": 4000}
OTHERS: dict[str, dict[str, Any]] = {
    "sglang": {"policy": "sglang"},
    "sglang, radix cache": {"policy": "sglang", "enable_prefix_caching": True},
    "sglang, mixed": {"policy": "sglang", "enable_mixed_chunk": True, "async_scheduling": True},
    "tensorrt": {"policy": "tensorrt_llm"},
    "tensorrt, evicting": {"policy": "tensorrt_llm", "capacity_scheduler_policy": "MAX_UTILIZATION", **WHOLE},
    "sarathi": {"policy": "sarathi"},
    "sarathi in turns": {"policy": "sarathi", "batching": "alternating"},
    "prefill first": {"policy": "prefill_first", **WHOLE},
    "orca": {"policy": "orca", **WHOLE},
    "static": {"policy": "static", **WHOLE},
    "static, padded": {"policy": "static", "padded": True, **WHOLE},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_recorded_run_of_another_scheduler_is_replayed(name: str, tmp_path: Path) -> None:
    check(execute(prepared(OTHERS[name], run={"checks": True}), steps=tmp_path).record)
    assert_identical(tmp_path / "0")
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    assert config["scheduler"]["policy"] == OTHERS[name]["policy"]


@pytest.mark.parametrize("name", ["plain", "version"])
def test_any_cost_model_is_replayed_from_its_durations(name: str, tmp_path: Path) -> None:
    execute(prepared(SCHEDULERS[name], {"host": "1ms", "per_decode_token": "3us"}, replicas=2), steps=tmp_path)
    for replica in ("0", "1"):
        config = tmp_path / replica / "config.json"
        settings = json.loads(config.read_text())
        assert settings["time"] == "recorded"
        assert_identical(tmp_path / replica)
    config.write_text(json.dumps(settings | {"max_num_seqs": 2}))
    assert not check_scheduler(tmp_path / "1").identical  # a changed policy is diffed against the run


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("allocation", ["contiguous", "contiguous_exact"])
def test_memory_in_one_piece_is_replayed(allocation: str, asynchronous: bool, tmp_path: Path) -> None:
    asked = scenario(
        WORKLOAD | {"max_tokens": 60},
        LINEAR,
        scheduler={"max_model_len": 700, "max_num_batched_tokens": 256, "async_scheduling": asynchronous},
        memory={"kv_blocks": 90, "allocation": allocation},
    )
    run = execute(prepare(asked), steps=tmp_path)
    assert run.record.steps.waiting.max() > 1
    assert_identical(tmp_path / "0")
    config = tmp_path / "0" / "config.json"
    settings = json.loads(config.read_text())
    assert settings["allocation"] == allocation
    config.write_text(json.dumps(settings | {"allocation": "paged"}))
    assert not check_scheduler(tmp_path / "0").identical


def test_the_lanes_of_a_pipeline_are_replayed_from_their_durations(tmp_path: Path) -> None:
    execute(prepared(SCHEDULERS["plain"], pool={"pipeline_parallel": 2}), steps=tmp_path)
    for lane in ("0", "1"):
        assert_identical(tmp_path / lane)


def test_ranks_that_step_together_are_not_recorded(tmp_path: Path) -> None:
    ranks = prepared(SCHEDULERS["plain"], pool={"data_parallel": 2}, model="qwen3-30b-a3b")
    with pytest.raises(InputError, match=r"--steps: .* ranks that step together .*pool main"):
        execute(ranks, steps=tmp_path / "steps")
    assert not (tmp_path / "steps").exists()
    execute(prepared(SCHEDULERS["plain"], pool={"data_parallel": 2}), steps=tmp_path)  # of a dense model
    for rank in ("0", "1"):
        assert_identical(tmp_path / rank)


#: Steps that end together on several replicas, at every millisecond: clients answer at once, or the front end holds
#: requests back, so that the end of a step here is an arrival there.
GRIDS: dict[str, dict[str, Any]] = {
    "closed loop": {"arrivals": {"process": "closed_loop", "concurrency": 3}},
    "thinking": {"arrivals": {"process": "closed_loop", "concurrency": 8, "think_time": "3ms"}},
    "held back": {"arrivals": {"process": "constant", "rate": 500}, "max_concurrency": 4},
    "open": {"arrivals": {"process": "constant", "rate": 1000}},
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_arrivals_at_the_very_moment_of_a_step_are_replayed(grid: str, asynchronous: bool, tmp_path: Path) -> None:
    lengths = {"prompt_tokens": {"distribution": "uniform", "min": 1, "max": 12}, "requests": 40}
    lengths["output_tokens"] = {"distribution": "uniform", "min": 1, "max": 4}
    tied = 0
    for seed in range(6):
        for cost in ({"base": "1ms"}, {"base": "1ms", "host": "2ms"}):
            asked = scenario(
                lengths | GRIDS[grid],
                cost,
                scheduler={
                    "version": "none",
                    "async_scheduling": asynchronous,
                    "max_num_seqs": 2 + seed,
                    "max_num_batched_tokens": 16,
                    "scheduling_policy": ("fcfs", "priority")[seed % 2],
                },
                memory={"kv_blocks": 20, "block_size": 4},
                replicas=2 + seed % 2,
                router={"policy": ("round_robin", "least_tokens")[seed % 2]},
                seed=seed,
            )
            folder = tmp_path / f"{seed}{len(cost)}"
            execute(prepare(asked), steps=folder)
            for replica in sorted(folder.iterdir()):
                assert_identical(replica)
                with gzip.open(replica / "trace.jsonl.gz", "rt") as trace:
                    tied += sum("behind_step" in line for line in trace)
    assert tied if grid in ("closed loop", "held back") else not tied


def test_what_a_step_that_only_preempts_leaves_is_there_at_its_end(tmp_path: Path) -> None:
    """Asynchronously the next step is formed before it ends, as behind any other that was formed ahead."""
    drafts = {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "pass_time": "0ms",
        "acceptance": {"law": "iid", "alpha": 0.5},
    }
    load = {"arrivals": {"process": "all_at_once"}, "requests": 30, "prompt_tokens": 13, "output_tokens": 12}
    asked = scenario(
        load,
        {"base": "1ms"},
        scheduler={"async_scheduling": True, "max_num_seqs": 16, "max_num_batched_tokens": 32, "max_model_len": 200},
        memory={"kv_blocks": 60, "block_size": 1},
        pool={"speculation": drafts},
    )
    execute(prepare(asked), steps=tmp_path)
    with gzip.open(tmp_path / "0" / "steps.jsonl.gz", "rt") as file:
        steps = [json.loads(line) for line in file]
    assert any(not line["total"] for line in steps)
    assert_identical(tmp_path / "0")


def test_where_a_record_does_not_say_what_came_first_its_counts_do() -> None:
    def request(number: int, arrival_ns: int, behind: int = -1) -> ReplayRequest:
        return ReplayRequest(number, arrival_ns, 4, 2, 2, 0, behind)

    def line(sched_ns: int, end_ns: int, running: int, waiting: int, finished: list[int]) -> dict[str, Any]:
        counts = {"n_running": running, "n_waiting": waiting, "finished": finished}
        return {"sched_ns": sched_ns, "end_ns": end_ns} | counts

    requests = [request(0, 0), request(1, 5), request(2, 5), request(3, 5, behind=7), request(4, 9)]
    # Formed at 5 with one of the three that arrive then, when the first request had ended.
    steps = [line(0, 5, 1, 0, [0]), line(5, 9, 1, 0, []), line(9, 14, 2, 2, [])]
    assert [each.behind_step for each in with_ties(requests, steps)] == [-1, -1, 1, 7, -1]
    # The same while a step that was formed ahead is in flight: that one, the first, must end.
    ahead = [line(0, 9, 1, 0, []), line(5, 14, 2, 0, [])]
    assert [each.behind_step for each in with_ties(requests, ahead)] == [-1, -1, 0, 7, -1]
    assert with_ties(requests, [{"sched_ns": 5}]) == requests


@pytest.mark.parametrize("name", ["plain", "version"])
def test_a_run_that_a_horizon_stops_is_replayed(name: str, tmp_path: Path) -> None:
    execute(prepared(SCHEDULERS[name], run={"horizon": "2s"}), steps=tmp_path)
    assert json.loads((tmp_path / "0" / "config.json").read_text())["stopped"]
    assert_identical(tmp_path / "0")


def test_a_prompt_larger_than_the_pool_is_refused_or_waits_for_ever(tmp_path: Path) -> None:
    table = request_table([0, 10**6, 2 * 10**6], [20, 200, 20], [3, 3, 3])
    scheduler = {"max_num_batched_tokens": 64, "max_model_len": 400}
    memory = {"kv_blocks": 10}
    refusing = prepare(scenario(PLACEHOLDER, LINEAR, scheduler=scheduler, memory=memory))
    summary = execute(refusing._replace(table=table)).summary
    assert summary["requests"]["rejected_reasons"] == {"kv_pool": 1}
    waiting = prepare(scenario(PLACEHOLDER, LINEAR, scheduler=scheduler | {"pool_overflow": "wait"}, memory=memory))
    for steps in (None, tmp_path):
        with pytest.raises(StalledError, match="0 running, 2 waiting"):
            execute(waiting._replace(table=table), steps=steps)
    assert_identical(tmp_path / "0")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_admission_without_reservation_for_ever_is_a_deadlock_too(asynchronous: bool) -> None:
    scheduler = {
        "max_model_len": 400,
        "pool_overflow": "wait",
        "scheduler_reserve_full_isl": False,
        "max_num_batched_tokens": 64,
        "async_scheduling": asynchronous,
    }
    ready = prepare(scenario(PLACEHOLDER, LINEAR, scheduler=scheduler, memory={"kv_blocks": 10}))
    table = request_table([0, 10**6, 2 * 10**6], [20, 200, 20], [3, 3, 3])
    with pytest.raises(StalledError, match="needs more KV blocks than there are"):
        execute(ready._replace(table=table))


@pytest.mark.parametrize("engine", ["lazy", "explicit"])
def test_prompts_that_take_each_others_blocks_for_ever_are_a_deadlock_too(engine: str) -> None:
    """Of equal priorities the oldest is preempted, here before either prompt is computed completely."""
    scheduler = {
        "scheduling_policy": "priority",
        "scheduler_reserve_full_isl": False,
        "max_num_batched_tokens": 32,
        "long_prefill_token_threshold": 16,
    }
    ready = prepare(
        scenario(PLACEHOLDER, LINEAR, scheduler=scheduler, memory={"kv_blocks": 12}, run={"engine": engine})
    )
    with pytest.raises(StalledError, match="take each other's blocks in turn"):
        execute(ready._replace(table=request_table([0, 0], [180, 180], [3, 3])))


def test_outputs_are_cut_at_the_context_limit() -> None:
    ready = prepare(
        scenario(
            WORKLOAD | {"prompt_tokens": 90, "output_tokens": 20},
            LINEAR,
            scheduler={"max_model_len": 100, "context_overflow": "cut"},
        )
    )
    run = execute(ready)
    assert run.record.requests.emitted_tokens.tolist() == [10] * 120
    assert "output_cut_at_context" in {warning["code"] for warning in run.summary["warnings"]}


def test_prefix_caching_is_in_the_summary_and_its_note_is_gone() -> None:
    without, cached = (execute(prepared(each)).summary for each in ({}, {"enable_prefix_caching": True}))
    codes = [{warning["code"] for warning in summary["warnings"]} for summary in (without, cached)]
    assert ["prefix_sharing_not_simulated" in each for each in codes] == [True, False]
    assert "prefix_cache" not in without
    cache = cached["prefix_cache"]
    assert cache["hit_rate"] == pytest.approx(cache["hit_tokens"] / cache["queried_tokens"], abs=1e-6)
    assert cache["hit_tokens"] > 0
    assert cached["latency"]["ttft_ms"]["mean"] < without["latency"]["ttft_ms"]["mean"]


def test_the_lazy_engine_says_what_it_cannot_follow() -> None:
    asked = scenario(WORKLOAD, LINEAR, scheduler={"prefill_schedule_interval": 2}, run={"engine": "lazy"})
    with pytest.raises(InputError, match=r"run.engine: lazy does not support scheduler.prefill_schedule_interval: 2"):
        prepare(asked)


def test_a_version_sets_what_is_left_out() -> None:
    def settings(**keys: Any) -> tuple[bool | None, bool | None]:
        (pool,) = prepare(scenario(PLACEHOLDER, LINEAR, scheduler=keys)).resolved.pools
        scheduler = pool.settings.scheduler
        assert isinstance(scheduler, VllmScheduler)
        return scheduler.async_scheduling, scheduler.enable_prefix_caching

    assert settings() == (False, False)
    assert settings(version="vllm-0.33") == (True, True)
    assert settings(version="vllm-0.33", enable_prefix_caching=False) == (True, False)
