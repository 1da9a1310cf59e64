"""Simulation of measured runs: stages of one run, one after the other on one warm server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models import NO_FRONT_END, HostModel
from simulator.deployment.resolve import Resolved, resolve
from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.results.columns import Status
from simulator.results.itl import InterTokenLatencies
from simulator.results.latency import tpot_ns
from simulator.results.record import RunRecord
from simulator.scenario.lengths import Fixed
from simulator.scenario.schedulers import Scheduler, SglangScheduler, TensorRtLlmScheduler, VllmScheduler
from simulator.scenario.schema import (
    Deployment,
    Memory,
    ModelRef,
    Pool,
    RooflineCost,
    Scenario,
)
from simulator.scenario.traffic import AllAtOnce, ClosedLoop, Poisson, Workload
from simulator.speculation import Origin, RequestClasses, build_acceptance
from simulator.validation.engine_facts import engine_facts
from simulator.validation.requests import requests_of
from simulator.validation.setting import Load, Setting
from simulator.workload.requests import RequestTable

_NS = 10**9
#: Tokens of a KV block: the engines' defaults.
_BLOCK_SIZE = {"vllm": 16, "sglang": 1, "tensorrt_llm": 32}
#: A resolved server does not depend on its load. This many are cached, for further draws of the same run.
_NO_LOAD, _SERVERS = Load(1), 8
_PERCENTS = (50, 90, 95, 99)
#: Mean TTFT in ms from which a run is called overloaded, as in the measured rows.
OVERLOADED_TTFT_MS = 5_000.0


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction of one row.

    `metrics` are by column name, empty if no request finished; `overloaded` if the load was above capacity; `running`
    is the mean number of running requests, `prompt_tokens` and `output_tokens` are mean lengths, `refused` is the
    number of refused requests. `engine` has every setting of the simulated engine (`engine_facts`).
    """

    metrics: dict[str, float]
    overloaded: bool
    running: float
    prompt_tokens: float
    output_tokens: float
    refused: int = 0
    engine: dict[str, Any] = field(default_factory=dict)


def replay(stages: Sequence[Setting], seed: int, host: HostModel | None = None) -> list[Predicted]:
    """Simulate loads of one server, one after the other; `host` replaces the host model of their settings.

    Raises:
        InputError: the deployment refuses a setting.
    """
    table = requests_of(stages, seed)
    server = _server(stages[0], host)
    (service,), scenario = server.services, server.settle(_scenario(stages[0], seed))
    record = simulate(scenario, table, [_accepting(service, stages[0], table, seed)])
    engine = engine_facts(scenario, stages[0], service.kv_blocks) | ({} if host is None else {"host": "fitted"})
    return [replace(_predicted(record, stage, number), engine=engine) for number, stage in enumerate(stages)]


def _accepting(service: Service, setting: Setting, table: RequestTable, seed: int) -> Service:
    """Return the server with the acceptance law of these requests, if it speculates."""
    if setting.speculation is None:
        return service
    classes = RequestClasses(table.class_names, table.class_id)
    law = build_acceptance(setting.speculation, setting.model, seed, classes, Origin("speculation", Path))
    return service._replace(acceptance=law)


def with_plain_metrics(predicted: Predicted, plain: Predicted) -> Predicted:
    """Return a run with speculation, with the metrics of the same run without it as `plain_...`, and the speed-ups."""
    found = dict(predicted.metrics)
    for name, speed_up in (("tpot_mean_ms", "tpot_speed_up"), ("output_tok_s", "output_speed_up")):
        if name in predicted.metrics and name in plain.metrics:
            found[f"plain_{name}"] = plain.metrics[name]
            ratio = predicted.metrics[name] / plain.metrics[name]
            found[speed_up] = 1 / ratio if name == "tpot_mean_ms" else ratio
    return replace(predicted, metrics=found)


def deployed(setting: Setting, host: HostModel | None = None) -> Service:
    """Return the server of a setting, in numbers. Raises InputError if it is refused."""
    return _server(setting, host).services[0]


def _server(setting: Setting, host: HostModel | None) -> Resolved:
    return _resolved(replace(setting, load=_NO_LOAD), host)


@lru_cache(_SERVERS)
def _resolved(setting: Setting, host: HostModel | None) -> Resolved:
    resolved = resolve(_scenario(setting, 0), host=host)
    if setting.front_end:
        return resolved
    (pool,) = resolved.pools
    return resolved._replace(pools=(pool._replace(service=pool.service._replace(front_end=NO_FRONT_END)),))


def _scenario(setting: Setting, seed: int) -> Scenario:
    load = setting.load
    arrivals: ClosedLoop | Poisson | AllAtOnce = AllAtOnce()
    if load.concurrency is not None:
        arrivals = ClosedLoop(load.concurrency)
    elif load.rate is not None:
        arrivals = Poisson(load.rate)
    pool = Pool(
        gpu=setting.gpu,
        tensor_parallel=setting.tensor_parallel,
        pipeline_parallel=setting.pipeline_parallel,
        expert_parallel=setting.expert_parallel,
        scheduler=_scheduler(setting),
        memory=Memory(setting.gpu_memory_utilization, _BLOCK_SIZE[setting.engine]),
        cost_model=RooflineCost(host=setting.host),
        speculation=setting.speculation,
    )
    return Scenario(
        name="measured",
        model=ModelRef(setting.model, setting.weights, setting.kv_cache),  # type: ignore[arg-type]
        workload=Workload(
            arrivals=arrivals,
            requests=load.requests,
            prompt_tokens=setting.prompt_tokens,
            output_tokens=setting.output_tokens,
        ),
        deployment=Deployment({"measured": pool}),
        seed=seed,
    )


def _scheduler(setting: Setting) -> Scheduler:
    """Return the scheduler of the row's engine. Settings that are None have the engine's defaults."""
    common: dict[str, Any] = {
        "max_num_seqs": setting.max_num_seqs,
        "max_num_batched_tokens": setting.max_num_batched_tokens,
        "max_model_len": setting.max_model_len or "auto",
        "async_scheduling": setting.async_scheduling,
    }
    given = {name: value for name, value in common.items() if value is not None}
    if setting.engine == "tensorrt_llm":
        law = setting.prompt_tokens  # chunked context is off by default, but needed unless all prompts fit a step
        whole = isinstance(law, Fixed) and law.value <= (setting.max_num_batched_tokens or 0)
        return TensorRtLlmScheduler(enable_chunked_context=not whole, **given)
    if setting.prefix_caching is not None:
        given["enable_prefix_caching"] = setting.prefix_caching
    if setting.engine == "sglang":
        return SglangScheduler(**given)
    return VllmScheduler(version=setting.version, **given)  # type: ignore[arg-type]


def _predicted(record: RunRecord, setting: Setting, number: int) -> Predicted:
    requests = record.requests
    done = (requests.class_id == number) & (requests.status == Status.COMPLETED)
    refused = int(((requests.class_id == number) & (requests.status == Status.REJECTED)).sum())
    chosen = np.flatnonzero(done)
    if setting.load.warmup:
        chosen = chosen[np.argsort(requests.client_ns[chosen], kind="stable")][setting.load.warmup :]
    # Times are from the arrival at the service: a client with a limit measures from when it sends a request.
    ttft = (requests.first_token_ns - requests.arrival_ns)[chosen] / 1e6
    e2e = (requests.finish_ns - requests.arrival_ns)[chosen] / 1e6
    tpot = tpot_ns(requests)[chosen] / 1e6
    tokens = np.asarray(requests.emitted_tokens, float)[chosen]
    several = tokens > 1
    if not len(chosen):
        return Predicted({}, False, math.nan, math.nan, math.nan, refused)
    metrics = _statistics("ttft", ttft) | _statistics("e2e", e2e) | _acceptance(record)
    if several.any():
        metrics |= _statistics("tpot", tpot[several])
        metrics["itl_mean_ms"] = float((e2e - ttft)[several].sum() / (tokens[several] - 1).sum())
        metrics |= _gaps(record, chosen)
    begin, end = requests.client_ns[chosen].min(), requests.finish_ns[chosen].max()
    seconds = max(float(end - begin) / _NS, 1e-9)
    metrics["req_per_s"] = len(chosen) / seconds
    metrics["output_tok_s"] = float(tokens.sum()) / seconds
    metrics["total_tok_s"] = float(tokens.sum() + requests.prompt_tokens[chosen].sum()) / seconds
    open_loop = setting.load.concurrency is None and setting.load.rate is not None
    overloaded = open_loop and (float(ttft.mean()) > OVERLOADED_TTFT_MS or _grows(record, done))
    running = float(e2e.sum()) / 1e3 / seconds
    prompts = float(requests.prompt_tokens[chosen].mean())
    return Predicted(metrics, overloaded, running, prompts, float(tokens.mean()), refused)


def _acceptance(record: RunRecord) -> dict[str, float]:
    """Return the acceptance length of a run, the verified token included; nothing if no draft was verified."""
    positions = record.draft_positions
    verified = int(positions.sequences[positions.depth == 0].sum())
    return {"acceptance_length": 1 + int(positions.accepted.sum()) / verified} if verified else {}


def _grows(record: RunRecord, chosen: NDArray[np.bool_]) -> bool:
    """Return whether the queue of a stage was long and still growing when its last requests arrived."""
    requests = record.requests
    waited = (requests.scheduled_ns - requests.arrival_ns)[chosen] / 1e6
    quarter = len(waited) // 4
    return bool(
        quarter and waited[-quarter:].mean() > 1_000 and waited[-quarter:].mean() > 1.5 * waited[:quarter].mean()
    )


def _gaps(record: RunRecord, chosen: NDArray[np.intp]) -> dict[str, float]:
    """Return percentiles of the gaps that a client measures; it takes each event of its stream for a token."""
    mine = np.zeros(len(record.requests.status), bool)
    mine[chosen] = True
    gaps = InterTokenLatencies(record).of_events(mine)
    return {f"itl_p{percent}_ms": gaps.quantile(percent / 100) / 1e6 for percent in _PERCENTS} if gaps.count else {}


def _statistics(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    found = {f"{name}_mean_ms": float(values.mean())}
    for percent in _PERCENTS:
        found[f"{name}_p{percent}_ms"] = float(np.percentile(values, percent))
    return found
