"""Statistics of a workload: rate, burstiness, lengths. Percentiles are linear interpolations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.workload.requests import Ints, RequestTable
from simulator.workload.tables import NS


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Statistics of lengths in tokens over all requests."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int
    total: int


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Statistics of a workload; None where the requests do not determine one.

    `duration_s` is the time from the first arrival to the last, `rate_per_s` the inverse of the mean gap between
    arrivals, `gap_cv` the coefficient of variation of the gaps, `max_per_second` the largest number of arrivals in a
    whole second counted from the first arrival, `shared_arrivals` the share of the requests that arrive at the same
    time as another one, and `length_correlation` Pearson's correlation of prompt and output tokens.
    """

    requests: int
    duration_s: float
    rate_per_s: float | None
    gap_cv: float | None
    max_per_second: int
    shared_arrivals: float
    prompt_tokens: TokenStatistics
    output_tokens: TokenStatistics
    length_correlation: float | None


def trace_statistics(table: RequestTable) -> TraceStatistics:
    """Return the statistics of `table`, which must have at least one request and be sorted by arrival."""
    arrival_ns = table.arrival_ns - table.arrival_ns[0]
    gaps_ns = np.diff(arrival_ns)
    span_ns = int(arrival_ns[-1])
    _, at_once = np.unique(arrival_ns, return_counts=True)
    _, in_second = np.unique(arrival_ns // NS, return_counts=True)
    return TraceStatistics(
        requests=len(table),
        duration_s=span_ns / NS,
        rate_per_s=len(gaps_ns) * NS / span_ns if span_ns else None,
        gap_cv=float(gaps_ns.std() / gaps_ns.mean()) if span_ns else None,
        max_per_second=int(in_second.max()),
        shared_arrivals=float(at_once[at_once > 1].sum() / len(table)),
        prompt_tokens=_token_statistics(table.prompt_tokens),
        output_tokens=_token_statistics(table.output_tokens),
        length_correlation=_correlation(table.prompt_tokens, table.output_tokens),
    )


def _token_statistics(tokens: Ints) -> TokenStatistics:
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99])
    return TokenStatistics(
        float(tokens.mean()), float(p50), float(p90), float(p99), int(tokens.max()), int(tokens.sum())
    )


def _correlation(x: Ints, y: Ints) -> float | None:
    if x.min() == x.max() or y.min() == y.max():
        return None
    return float(np.corrcoef(x, y)[0, 1])
