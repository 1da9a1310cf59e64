"""Builders that several tests share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from cost_models import load_gpu
from simulator.common.shipped import file_finder
from simulator.deployment.acceptance import with_acceptance
from simulator.deployment.resolve import resolve
from simulator.results.record import RunRecord
from simulator.results.segments import token_times
from simulator.scenario import Scenario, parse_scenario
from simulator.scenario.schedulers import DistServeScheduler, Scheduler
from simulator.scenario.schema import Pool
from simulator.scheduling import with_engine_defaults
from simulator.study.prepare import prepare
from simulator.study.run import Run, execute
from simulator.workload.requests import RequestTable


def request_table(
    arrival_ns: Sequence[int],
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    max_tokens: Sequence[int] | None = None,
    ids: Sequence[str] | None = None,
    priority: Sequence[int] | None = None,
    prefix_id: Sequence[int] | None = None,
    prefix_tokens: Sequence[int] | None = None,
) -> RequestTable:
    """Return a table of the given requests, sorted by arrival."""
    order = np.argsort(np.asarray(arrival_ns), kind="stable")
    none = np.full(len(order), -1, np.int32)
    outputs = np.asarray(output_tokens, np.int32)[order]
    return RequestTable(
        arrival_ns=np.asarray(arrival_ns, np.int64)[order],
        prompt_tokens=np.asarray(prompt_tokens, np.int32)[order],
        output_tokens=outputs,
        max_tokens=outputs if max_tokens is None else np.asarray(max_tokens, np.int32)[order],
        class_id=np.zeros(len(order), np.int16),
        class_names=("default",),
        prompt_id=none,
        prefix_id=none if prefix_id is None else np.asarray(prefix_id, np.int32)[order],
        prefix_tokens=np.zeros(len(order), np.int32)
        if prefix_tokens is None
        else np.asarray(prefix_tokens, np.int32)[order],
        ids=None if ids is None else tuple(ids[i] for i in order),
        extras={} if priority is None else {"priority": np.asarray(priority)[order]},
    )


def plain_scheduler(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, those of vLLM with `version: none` unless they have a version, and those of SGLang with its
    defaults."""
    defaults = {"vllm": {"version": "none"}, "sglang": {"max_num_seqs": 1024, "async_scheduling": True}}
    return {**defaults.get(given.get("policy", "vllm"), {}), **given}


def scenario(
    workload: dict[str, Any],
    cost_model: dict[str, Any],
    *,
    scheduler: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    replicas: int = 1,
    pool: dict[str, Any] | None = None,
    **keys: Any,
) -> Scenario:
    """A scenario of one pool under a linear law, with so much memory and context that neither matters unless given.

    vLLM's scheduler is the plain one, `version: none`, unless a version is given. `pool` are further keys of the pool,
    `keys` further ones of the scenario.
    """
    served = {
        "gpu": "h100-sxm",
        "replicas": replicas,
        "scheduler": {"max_num_batched_tokens": 10**9, "max_model_len": 10**8, **(scheduler or {})},
        "memory": {"kv_blocks": 10**9, **(memory or {})},
        "cost_model": {"kind": "linear", **cost_model},
        **(pool or {}),
    }
    served["scheduler"] = plain_scheduler(served["scheduler"])
    document = {
        "name": "test",
        "model": "llama-3.1-8b",
        "workload": workload,
        "deployment": {"pools": {"main": served}},
    }
    return parse_scenario(json.dumps(document | keys))


def complete(scheduler: Scheduler, gpu: str = "h100-sxm", **pool: Any) -> Any:
    """The settings of a scheduler with the engine's defaults, in a pool with these other keys and a model of 131,072
    tokens of context."""
    if isinstance(scheduler, DistServeScheduler):  # needs a role, and has no such defaults
        return scheduler
    spec = load_gpu(gpu)
    return with_engine_defaults(Pool(gpu, scheduler=scheduler, **pool), spec.name, spec.hbm_bytes, 131_072).scheduler


def run(scenario: Scenario, table: RequestTable | None = None) -> Run:
    """Run a scenario, with the requests of `table` in the place of its own if there is one."""
    prepared = prepare(scenario)
    if table is None:
        return execute(prepared)
    prepared = prepared._replace(table=table)
    if any(pool.speculation is not None for pool in scenario.deployment.pools.values()):
        # What becomes of drafts is drawn by request, so that it must be drawn again for others.
        resolved = with_acceptance(resolve(scenario), scenario, table, file_finder(None))
        prepared = prepared._replace(resolved=resolved)
    return execute(prepared)


#: A workload for runs with a table of their own.
PLACEHOLDER = {"arrivals": {"process": "all_at_once"}, "requests": 1, "prompt_tokens": 1, "output_tokens": 1}


def bench_serve_result(record: RunRecord, model: str, rate: float, began_s: float = 12345.0) -> dict[str, Any]:
    """Return the result of `vllm bench serve --save-result --save-detailed` for a run that completed all requests."""
    requests = record.requests
    times = [token_times(record, request) for request in range(len(requests.status))]
    return {
        "model_id": model,
        "request_rate": rate,
        "max_concurrency": None,
        "input_lens": requests.prompt_tokens.tolist(),
        "output_lens": requests.emitted_tokens.tolist(),
        "ttfts": ((requests.first_token_ns - requests.arrival_ns) / 1e9).tolist(),
        "itls": [(np.diff(of_request) / 1e9).tolist() for of_request in times],
        "start_times": (requests.arrival_ns / 1e9 + began_s).tolist(),
        "errors": [""] * len(times),
    }
