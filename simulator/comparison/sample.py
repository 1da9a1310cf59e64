"""What a comparison keeps of one run: its summary, and enough of its requests to pair and to draw them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.attribution import attribute
from simulator.results.itl import itl_values
from simulator.results.latency import tpot_ns
from simulator.results.record import RunRecord
from simulator.results.warmup import select
from simulator.study.run import Run
from simulator.study.same_requests import fingerprint
from simulator.workload import RequestTable

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Edges in ms of the histograms that pictures are drawn from: 100 bins a decade, from 1 us to 28 hours.
EDGES_MS: Floats = np.geomspace(1e-3, 1e8, 1101)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one design under one seed.

    `requests` stands for the requests that it met. `latencies_ms` has, by metric, one value a request in the
    order of requests, NaN where it does not count (see `results.warmup`); `ttft` and `itl` count values by the bins of
    `EDGES_MS`.
    """

    summary: dict[str, Any]
    requests: str
    latencies_ms: dict[str, Floats]
    ttft: Counts
    itl: Counts


def sample_of(run: Run, table: RequestTable, ignored: Collection[str] = ()) -> Sample:
    """The sample of a finished run of the requests `table`, in which the columns `ignored` may differ by design."""
    record, requests = run.record, run.record.requests
    kept = select(record, run.scenario.run.warmup).kept
    latencies = {
        "ttft_ms": requests.first_token_ns - requests.arrival_ns,
        "e2e_ms": requests.finish_ns - requests.arrival_ns,
    }
    parts = attribute(record)
    if "stall" in parts:
        latencies["stall_ms"] = parts["stall"]
    in_ms = {name: np.where(kept, values / 1e6, np.nan) for name, values in latencies.items()}
    in_ms["tpot_ms"] = np.where(kept & (requests.emitted_tokens > 1), tpot_ns(requests) / 1e6, np.nan)
    ttft = _histogram(in_ms["ttft_ms"][kept], np.ones(int(kept.sum())))
    return Sample(run.summary, fingerprint(table, ignored), in_ms, ttft, _gaps(record, kept))


def trusted(metric: str, *samples: Sample) -> bool:
    """Whether each of these runs is worth enough independent requests for an interval of the mean of this metric."""
    return all(sample.summary["latency"][metric]["ci95"]["mean"] is not None for sample in samples)


def _gaps(record: RunRecord, kept: NDArray[np.bool_]) -> Counts:
    values_ns, weights = itl_values(record, kept)
    return _histogram(values_ns / 1e6, weights)


def _histogram(values_ms: Floats, weights: NDArray[np.number]) -> Counts:
    inside = np.clip(values_ms, EDGES_MS[0], EDGES_MS[-1])
    return np.histogram(inside, EDGES_MS, weights=weights)[0].astype(np.int64)
