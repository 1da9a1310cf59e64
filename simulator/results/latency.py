"""Latency blocks: mean, standard deviation, percentiles and their 95% intervals for any group of requests.

Definitions, all from the arrival at the service:

- TTFT: time to the first token.
- queue: time to the first step with the request.
- E2E: time to the last token.
- TPOT: (E2E - TTFT) / (tokens - 1), one value per request of two or more tokens.
- ITL: the gaps between successive tokens, pooled over requests; 0 between tokens of one speculative step.
- ITL by event: the gaps between events of a stream, as a client measures them that takes an event for a token (`vllm
  bench serve`); only with speculation.
- stall: the delay of a request's decode by the prefill of others, one value per request; only where it is recorded.

Client latencies start when the client wants to send. Percentiles are interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import release
from simulator.results.columns import Ints, RequestColumns
from simulator.results.effective_size import MEAN_TAIL, EffectiveSize
from simulator.results.itl import InterTokenLatencies
from simulator.results.record import RunRecord
from simulator.results.statistics import Distribution

Chosen = NDArray[np.bool_]
Groups = dict[str, Chosen]
Blocks = dict[str, dict[str, Any]]

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_WITH_INTERVAL = ("mean", "p50", "p95", "p99")
_NS_PER_MS = 1e6

_PROMPT_EDGES = (256, 1024, 4096, 16384, 65536)
_OUTPUT_EDGES = (16, 64, 256, 1024, 4096)


def number(value: float) -> float:
    """Return `value` rounded to nine significant digits, which hides rounding errors."""
    return float(f"{value:.9g}")


def tpot_ns(requests: RequestColumns) -> NDArray[np.float64]:
    """Return the time per token after the first in ns; 0 for one token, as in `vllm bench serve`."""
    return _tpot_ns(requests.finish_ns, requests.first_token_ns, requests.emitted_tokens)


def _tpot_ns(finish_ns: Ints, first_token_ns: Ints, tokens: Ints) -> NDArray[np.float64]:
    return (finish_ns - first_token_ns) / np.maximum(np.asarray(tokens, np.int64) - 1, 1)


class Latencies:
    """The latencies of a run's requests, for statistics of any group of them.

    `stall_ns` is the stall of each request (see `attribution`), None if it is unknown; `client_clock` adds the client
    latencies.
    """

    def __init__(self, record: RunRecord, stall_ns: NDArray[np.int64] | None, client_clock: bool) -> None:
        requests = record.requests
        self._arrival_ns = requests.arrival_ns
        self._two_tokens = np.asarray(requests.emitted_tokens) > 1
        self._gaps = InterTokenLatencies(record)
        self._speculates = record.speculates
        #: By name, a function of the rows of requests.
        self._metrics: dict[str, Callable[[NDArray[np.intp]], NDArray[np.number]]] = {
            "ttft_ms": lambda rows: requests.first_token_ns[rows] - requests.arrival_ns[rows],
            "tpot_ms": lambda rows: _tpot_ns(
                requests.finish_ns[rows], requests.first_token_ns[rows], requests.emitted_tokens[rows]
            ),
            "e2e_ms": lambda rows: requests.finish_ns[rows] - requests.arrival_ns[rows],
            "queue_ms": lambda rows: requests.scheduled_ns[rows] - requests.arrival_ns[rows],
        }
        if stall_ns is not None:
            self._metrics["stall_ms"] = lambda rows: stall_ns[rows]
        if client_clock:
            self._metrics["client_ttft_ms"] = lambda rows: requests.first_token_ns[rows] - requests.client_ns[rows]
            self._metrics["client_e2e_ms"] = lambda rows: requests.finish_ns[rows] - requests.client_ns[rows]

    def blocks(self, chosen: Chosen, effective_size: EffectiveSize, without: str = "") -> Blocks:
        """Return a block for each metric over the requests where `chosen` is True.

        Metrics without values are left out, and so is the one named `without`.
        """
        return blocks_of(self.samples(chosen, without), effective_size)

    def samples(self, chosen: Chosen, without: str = "") -> Iterator[tuple[str, Distribution]]:
        """Yield the metrics of the chosen requests by name, in ns; empty ones are left out."""
        rows = in_arrival_order(self._arrival_ns, chosen)
        for name, values in self._metrics.items():
            if name == without:
                continue
            some = rows[self._two_tokens[rows]] if name == "tpot_ms" else rows
            latencies_ns = values(some)
            release()
            found = [(name, Distribution.of_series(latencies_ns))]
            del latencies_ns
            if name == "ttft_ms":
                found.append(("itl_ms", self._gaps.of(chosen)))
                if self._speculates:
                    found.append(("itl_event_ms", self._gaps.of_events(chosen)))
            yield from ((metric, sample) for metric, sample in found if sample.count)

    def by_group(self, groups: Groups, effective_size: EffectiveSize, without: str = "") -> dict[str, Blocks]:
        """Return the blocks of each group of requests that is not empty, by its name.

        `effective_size` is that of all groups together; `without` as in `blocks`.
        """
        all_ = sum(np.count_nonzero(chosen) for chosen in groups.values())
        return {
            name: self.blocks(chosen, effective_size.of_share(np.count_nonzero(chosen) / all_), without)
            for name, chosen in groups.items()
            if chosen.any()
        }


def groups_of(kept: Chosen, group: Ints, names: tuple[str, ...]) -> Groups:
    """Return the kept requests of each group by its name; `group` is the index of each request's group in `names`."""
    return {name: kept & (group == index) for index, name in enumerate(names)}


def blocks_of(samples: Iterable[tuple[str, Distribution]], effective_size: EffectiveSize) -> Blocks:
    """Return a latency block for each metric."""
    return {name: latency_block(sample, effective_size) for name, sample in samples}


def in_arrival_order(arrival_ns: Ints, chosen: Chosen) -> NDArray[np.intp]:
    """Return the rows of the chosen requests in order of arrival, ties in request order."""
    rows = np.flatnonzero(chosen)
    arrivals = arrival_ns[rows]
    return rows if np.all(arrivals[1:] >= arrivals[:-1]) else rows[np.argsort(arrivals, kind="stable")]


def prompt_buckets(requests: RequestColumns) -> tuple[Ints, tuple[str, ...]]:
    """Return the bucket of each request by prompt length, and the names of the buckets."""
    return np.digitize(requests.prompt_tokens, _PROMPT_EDGES), _bucket_names(_PROMPT_EDGES)


def output_buckets(requests: RequestColumns) -> tuple[Ints, tuple[str, ...]]:
    """Return the bucket of each request by output tokens, and the names of the buckets."""
    return np.digitize(requests.emitted_tokens, _OUTPUT_EDGES), _bucket_names(_OUTPUT_EDGES)


def _bucket_names(edges: tuple[int, ...]) -> tuple[str, ...]:
    inner = (f"{low}-{high - 1}" for low, high in zip((1, *edges), edges, strict=False))
    return (*inner, f"{edges[-1]}+")


def latency_block(sample: Distribution, effective_size: EffectiveSize) -> dict[str, Any]:
    """Return mean, standard deviation, percentiles and intervals in ms of a sample in ns.

    For intervals that are None, `ci95_reason` has a key of `effective_size.REASONS`.
    """
    values = {"mean": sample.mean(), "std": sample.std()}
    values |= {name: sample.quantile(p) for name, p in PERCENTILES.items()}
    values["max"] = float(sample.values[-1])
    block: dict[str, Any] = {name: number(value / _NS_PER_MS) for name, value in values.items()}
    found = {name: _interval(sample, name, effective_size) for name in _WITH_INTERVAL}
    ci95 = {
        # An interval is symmetric about the mean, and no time is below 0.
        name: None if isinstance(interval, str) else [number(max(bound, 0.0) / _NS_PER_MS) for bound in interval]
        for name, interval in found.items()
    }
    reasons = {name: interval for name, interval in found.items() if isinstance(interval, str)}
    block |= {"count": sample.count, "ci95": ci95}
    return block | {"ci95_reason": reasons} if reasons else block


def _interval(sample: Distribution, name: str, effective_size: EffectiveSize) -> tuple[float, float] | str:
    """Return the interval of a statistic, or the reason why there is none."""
    p = PERCENTILES.get(name)
    allowance = effective_size.variance_factor(MEAN_TAIL if p is None else min(p, 1 - p))
    if allowance is None:
        return effective_size.reason
    interval = sample.mean_interval(allowance) if p is None else sample.quantile_interval(p, allowance)
    return interval or "tail_too_rare"
