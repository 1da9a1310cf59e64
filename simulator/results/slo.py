"""Service level objectives: limits, measured values, and attainment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.latency import Blocks, number, tpot_ns
from simulator.results.record import RunRecord
from simulator.results.statistics import Distribution
from simulator.scenario.slo import Slo

_NS_PER_MS = 1e6


def slo_section(slo: Slo | None, samples: Mapping[str, Distribution], latency: Blocks) -> dict[str, Any] | None:
    """Return the summary's section on objectives; None without objectives.

    `samples` are the latencies in ns, by the names of their blocks in `latency`. `met` is True if every statistic with
    a limit is within it, and None if there is no such limit. An objective without a measured value is not met.
    `attainment` is the share of requests, or of gaps between tokens, within the limit.
    """
    if slo is None:
        return None
    objectives = [_objective(*each, samples, latency) for each in slo.by_statistic()]
    requests = [_limit(f"{name}_ms", limit, samples) for name, limit in slo.by_request().items()]
    section: dict[str, Any] = {"met": all(each["met"] for each in objectives) if objectives else None}
    if objectives:
        section["objectives"] = objectives
    return section | ({"by_request": requests} if requests else {})


def _limit(metric: str, limit_ns: int, samples: Mapping[str, Distribution]) -> dict[str, Any]:
    attainment = samples[metric].share_within(limit_ns) if metric in samples else None
    share = None if attainment is None else number(attainment)
    return {"metric": metric, "limit_ms": number(limit_ns / _NS_PER_MS), "attainment": share}


def _objective(
    name: str, statistic: str, limit_ns: int, samples: Mapping[str, Distribution], latency: Blocks
) -> dict[str, Any]:
    metric = _measured_as(f"{name}_ms", samples)
    found = _limit(metric, limit_ns, samples)
    if metric not in samples:
        return found | {"statistic": statistic, "measured_ms": None, "ci95": None, "met": False}
    block = latency[metric]
    return found | {
        "statistic": statistic,
        "measured_ms": block[statistic],
        "ci95": block["ci95"].get(statistic),
        "met": block[statistic] <= found["limit_ms"],
    }


def _measured_as(metric: str, samples: Mapping[str, Distribution]) -> str:
    """Return the metric that stands for one left out: without speculation each event is one token, and without a limit
    of concurrency the client's clock is the service's.
    """
    return metric if metric in samples else _EQUAL_METRICS.get(metric, metric)


_EQUAL_METRICS = {"itl_event_ms": "itl_ms", "client_ttft_ms": "ttft_ms", "client_e2e_ms": "e2e_ms"}


def meets(record: RunRecord, slo: Slo) -> NDArray[np.bool_]:
    """Return which requests meet every per-request limit, on the service's clock."""
    requests = record.requests
    latencies = {
        "ttft": requests.first_token_ns - requests.arrival_ns,
        "tpot": tpot_ns(requests),
        "e2e": requests.finish_ns - requests.arrival_ns,
    }
    good = np.ones(len(requests.status), bool)
    for name, limit_ns in slo.by_request().items():
        good &= latencies[name] <= limit_ns
    return good
