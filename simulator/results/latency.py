"""Latency blocks: mean, deviation, percentiles and their 95% intervals, for any group of requests.

Definitions: TTFT is arrival to first token; queue, arrival to the first step with the request in it; E2E, arrival to
last token; TPOT, (E2E - TTFT) / (tokens - 1), one value a request of two tokens or more; ITL, every gap between two
tokens, pooled over requests (0 between tokens that a step with speculation brought at once); ITL by event, every gap
between two events of a stream, as a client sees them that takes an event for a token (`vllm bench serve`), where the
run speculates; stall, what the prefill of others took from the decode of a request, one value a request,
absent where that is not known.
The client's clocks start when the client wanted to send. Percentiles interpolate linearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import Ints, RequestColumns, RunRecord
from simulator.results.statistics import Distribution
from simulator.results.token_gaps import TokenGaps

Chosen = NDArray[np.bool_]
Blocks = dict[str, dict[str, Any]]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_WITH_INTERVAL = ("p50", "p95", "p99")
_NS_PER_MS = 1e6

_PROMPT_EDGES = (256, 1024, 4096, 16384, 65536)
_OUTPUT_EDGES = (16, 64, 256, 1024, 4096)


def number(value: float) -> float:
    """`value` with nine significant digits: more than anybody needs, and without the noise of rounding."""
    return float(f"{value:.9g}")


def tpot_ns(requests: RequestColumns) -> NDArray[np.float64]:
    """Time per token after the first, in ns, of completed requests; 0 for one token, as in `vllm bench serve`."""
    after_first = np.maximum(np.asarray(requests.emitted_tokens, np.int64) - 1, 1)
    return (requests.finish_ns - requests.first_token_ns) / after_first


class Latencies:
    """The latencies of a run's requests, to be summed up by group.

    `stall_ns` is how long each was stalled (see `attribution`), None where it is not known; `client_clock` adds the
    client's view.
    """

    def __init__(self, record: RunRecord, stall_ns: NDArray[np.int64] | None, client_clock: bool) -> None:
        requests = record.requests
        self._arrival_ns = requests.arrival_ns
        self._two_tokens = np.asarray(requests.emitted_tokens) > 1
        self._gaps = TokenGaps(record)
        self._speculates = record.speculates
        self._columns: dict[str, NDArray[np.number]] = {
            "ttft_ms": requests.first_token_ns - requests.arrival_ns,
            "tpot_ms": tpot_ns(requests),
            "e2e_ms": requests.finish_ns - requests.arrival_ns,
            "queue_ms": requests.scheduled_ns - requests.arrival_ns,
        }
        if stall_ns is not None:
            self._columns["stall_ms"] = stall_ns
        if client_clock:
            self._columns["client_ttft_ms"] = requests.first_token_ns - requests.client_ns
            self._columns["client_e2e_ms"] = requests.finish_ns - requests.client_ns

    def blocks(self, chosen: Chosen, without: str = "") -> Blocks:
        """One block a metric over the requests where `chosen` is True; a metric without values has none, nor has the
        one named `without`."""
        return {name: latency_block(sample) for name, sample in self._samples(chosen, without) if sample.count}

    def _samples(self, chosen: Chosen, without: str) -> Iterator[tuple[str, Distribution]]:
        rows = in_arrival_order(self._arrival_ns, chosen)
        with_tpot = rows[self._two_tokens[rows]]
        for name, values in self._columns.items():
            if name == without:
                continue
            yield name, Distribution.of_series(values[with_tpot if name == "tpot_ms" else rows])
            if name == "ttft_ms":
                yield "itl_ms", self._gaps.of(chosen)
                if self._speculates:
                    yield "itl_event_ms", self._gaps.of_events(chosen)

    def by_group(self, kept: Chosen, group: Ints, names: tuple[str, ...], without: str = "") -> dict[str, Blocks]:
        """The blocks of each group of the kept requests that has any, by its name; `without` as in `blocks`."""
        found = {name: kept & (group == index) for index, name in enumerate(names)}
        return {name: self.blocks(chosen, without) for name, chosen in found.items() if chosen.any()}


def in_arrival_order(arrival_ns: Ints, chosen: Chosen) -> NDArray[np.intp]:
    """Rows of the chosen requests, first arrival first, equal arrivals in request order."""
    rows = np.flatnonzero(chosen)
    arrivals = arrival_ns[rows]
    return rows if np.all(arrivals[1:] >= arrivals[:-1]) else rows[np.argsort(arrivals, kind="stable")]


def prompt_buckets(requests: RequestColumns) -> tuple[Ints, tuple[str, ...]]:
    """The bucket of each request by prompt length, and the buckets' names."""
    return np.digitize(requests.prompt_tokens, _PROMPT_EDGES), _names(_PROMPT_EDGES)


def output_buckets(requests: RequestColumns) -> tuple[Ints, tuple[str, ...]]:
    """The bucket of each request by the number of tokens it got, and the buckets' names."""
    return np.digitize(requests.emitted_tokens, _OUTPUT_EDGES), _names(_OUTPUT_EDGES)


def _names(edges: tuple[int, ...]) -> tuple[str, ...]:
    inner = (f"{low}-{high - 1}" for low, high in zip((1, *edges), edges, strict=False))
    return (*inner, f"{edges[-1]}+")


def latency_block(sample: Distribution) -> dict[str, Any]:
    """Mean, deviation, percentiles and their intervals of a sample in ns, as ms."""
    values = {"mean": sample.mean(), "std": sample.std()}
    values |= {name: sample.quantile(p) for name, p in PERCENTILES.items()}
    values["max"] = float(sample.values[-1])
    block: dict[str, Any] = {name: number(value / _NS_PER_MS) for name, value in values.items()}
    intervals = {"mean": sample.mean_interval()}
    intervals |= {name: sample.quantile_interval(PERCENTILES[name]) for name in _WITH_INTERVAL}
    ci95 = {
        # An interval is symmetric about the mean, and no time is below 0.
        name: None if interval is None else [number(max(bound, 0.0) / _NS_PER_MS) for bound in interval]
        for name, interval in intervals.items()
    }
    return block | {"count": sample.count, "ci95": ci95}
