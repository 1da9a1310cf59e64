"""The data of one run that a comparison keeps: its summary, and latencies by request and as histograms."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.comparison.metrics import Metric, value_of
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

#: Bin edges in ms of the histograms that figures are drawn from: 100 bins a decade, from 1 us to 28 hours.
EDGES_MS: Floats = np.geomspace(1e-3, 1e8, 1101)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one design under one seed.

    `requests` is the fingerprint of the requests. `latencies_ms` has, by metric, one value per request in request
    order, NaN for requests that statistics leave out (`results.warmup`). `ttft` and `itl` are histograms over
    `EDGES_MS`.
    """

    summary: dict[str, Any]
    requests: str
    latencies_ms: dict[str, Floats]
    ttft: Counts
    itl: Counts


def sample_of(run: Run, table: RequestTable, ignored: Collection[str] = ()) -> Sample:
    """Return the sample of a finished run; `ignored` are columns of `table` that may differ between designs."""
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


def paired_values(samples: Sequence[Sample], reference: Sequence[Sample], metric: Metric) -> list[tuple[float, float]]:
    """Return a metric's values of two designs under the same seeds, where both have one."""
    pairs = [
        (value_of(a.summary, metric), value_of(b.summary, metric)) for a, b in zip(samples, reference, strict=True)
    ]
    return [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]


def completed_by_both(sample: Sample, reference: Sample, latency: str) -> tuple[Floats, Floats]:
    """Return a latency in ms of the requests that both designs completed, in request order."""
    ours, theirs = sample.latencies_ms[latency], reference.latencies_ms[latency]
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    return ours[both], theirs[both]


def show_mean_interval(metric: str, *samples: Sample) -> bool:
    """Return whether each of these runs gives an interval for the mean of this latency."""
    return all(sample.summary["latency"][metric]["ci95"]["mean"] is not None for sample in samples)


def _gaps(record: RunRecord, kept: NDArray[np.bool_]) -> Counts:
    values_ns, weights = itl_values(record, kept)
    return _histogram(values_ns / 1e6, weights)


def _histogram(values_ms: Floats, weights: NDArray[np.number]) -> Counts:
    inside = np.clip(values_ms, EDGES_MS[0], EDGES_MS[-1])
    return np.histogram(inside, EDGES_MS, weights=weights)[0].astype(np.int64)
