"""Coverage of the intervals of one run, or of several, on queues with known values.

The server is empty at the start, as in simulations; n of them are the run. Of M/M/1, response times are exponential;
the distribution of M/D/1 is that of a very long run. `python -m pytest -m bench tests/bench/test_coverage.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import pytest

import simulator
from simulator.results.dependence import Dependence, effective_size_of_replications, effective_size_of_run
from simulator.results.latency import PERCENTILES, latency_block
from simulator.results.saturation import Load, dispersion
from simulator.results.statistics import Distribution
from simulator.scenario import parse_scenario

pytestmark = pytest.mark.bench

RUNS = 600
STATISTICS = ("mean", "p50", "p95", "p99")
REPEATS = 200
MS = 1e6
NONE = np.zeros(0)
#: Of fewer given intervals nothing can be said but that they are rare.
FEWEST = RUNS // 20


def queue(rng: np.random.Generator, service: str, rho: float, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Response times of the first customers of a single server, in mean service times; gaps and service times."""
    gaps = rng.exponential(1 / rho, count)
    sizes = np.ones(count) if service == "D" else rng.exponential(1, count)
    walk = np.concatenate([[0.0], np.cumsum(sizes[:-1] - gaps[1:])])
    return walk - np.minimum.accumulate(walk) + sizes, gaps, sizes


@functools.cache
def truth(service: str, rho: float) -> dict[str, float]:
    if service == "M":
        return {"mean": 1 / (1 - rho)} | {name: -math.log(1 - p) / (1 - rho) for name, p in PERCENTILES.items()}
    long = [queue(np.random.default_rng([1, part]), "D", rho, 2_000_000)[0][10_000:] for part in range(10)]
    found = np.quantile(np.concatenate(long), list(PERCENTILES.values()))
    return {"mean": 1 + rho / 2 / (1 - rho)} | dict(zip(PERCENTILES, found.tolist(), strict=True))


def seen(rng: np.random.Generator, service: str, rho: float, count: int) -> tuple[np.ndarray, Dependence]:
    """Return a run with the data of the summary: response times and load."""
    response, gaps, sizes = queue(rng, service, rho, count)
    share, variation = sizes.sum() / gaps.sum(), dispersion(gaps[1:]) + dispersion(sizes)
    load = Load(share, math.sqrt(variation / count), count, 1.0, variation, NONE, NONE, NONE)
    return response, Dependence(count, response.sum() / gaps.sum(), load, speculates=False, unstable=False)


def intervals(service: str, rho: float, count: int) -> Iterator[dict[str, list[float] | None]]:
    for seed in range(RUNS):
        response, found = seen(np.random.default_rng([2, seed, count]), service, rho, count)
        yield latency_block(Distribution.of_series(response * MS), effective_size_of_run(found))["ci95"]


@pytest.mark.parametrize("service", ["D", "M"])
@pytest.mark.parametrize("rho", [0.3, 0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("count", [500, 2_000, 10_000])
def test_coverage(service: str, rho: float, count: int) -> None:
    given, covered = dict.fromkeys(STATISTICS, 0), dict.fromkeys(STATISTICS, 0)
    true = truth(service, rho)
    for ci95 in intervals(service, rho, count):
        for name in STATISTICS:
            bounds = ci95[name]
            if bounds is not None:
                given[name] += 1
                covered[name] += bounds[0] * (1 - 1e-6) <= true[name] <= bounds[1] * (1 + 1e-6)
    print(f"M/{service}/1 load {rho}, {count} requests:", {n: (given[n], covered[n]) for n in STATISTICS})
    for name in STATISTICS:
        missed = given[name] - covered[name]
        assert missed <= max(0.1 * given[name], 0.01 * RUNS), (name, given[name], covered[name])
        if given[name] >= FEWEST:
            assert covered[name] >= 0.9 * given[name], (name, given[name], covered[name])


MD1 = """
name: md1
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: %g}
  requests: %d
  prompt_tokens: 8
  output_tokens: 1
deployment:
  pools:
    main:
      gpu: h100-sxm
      scheduler: {version: none, max_num_seqs: 1}
      cost_model: {kind: linear, base: 10ms}
"""


@pytest.mark.parametrize(("rho", "count"), [(0.3, 500), (0.7, 2_000), (0.9, 500), (0.9, 2_000)])
def test_coverage_through_the_engine(rho: float, count: int) -> None:
    """Return the summary of M/D/1 with a service time of 10 ms, simulated by the engine."""
    true, given, covered = truth("D", rho), 0, 0
    text = MD1 % (100 * rho, count)
    for seed in range(100):
        block = simulator.run(parse_scenario(text, "md1", [f"seed={seed}"])).summary["latency"]["e2e_ms"]
        for name, bounds in block["ci95"].items():
            if bounds is not None:
                given += 1
                covered += bounds[0] * (1 - 1e-6) <= 10 * true[name] <= bounds[1] * (1 + 1e-6)
    print(f"load {rho}, {count} requests: {given} given, {covered} cover")
    assert covered >= 0.9 * given
    assert rho == 0.9 or given >= 100


@pytest.mark.parametrize("service", ["D", "M"])
@pytest.mark.parametrize("rho", [0.3, 0.7, 0.9])
@pytest.mark.parametrize(("count", "runs"), [(500, 3), (500, 10), (2_000, 5), (2_000, 20), (10_000, 3), (10_000, 10)])
def test_coverage_of_replications(service: str, rho: float, count: int, runs: int) -> None:
    """Several runs that start empty, pooled: of the steady state, not only of runs as long as these."""
    given, covered = dict.fromkeys(STATISTICS, 0), dict.fromkeys(STATISTICS, 0)
    true = truth(service, rho)
    for experiment in range(REPEATS):
        several = [seen(np.random.default_rng([3, experiment, count, run]), service, rho, count) for run in range(runs)]
        pooled = Distribution.of_replications([(response * MS, np.ones(count)) for response, _ in several])
        ci95 = latency_block(pooled, effective_size_of_replications([found for _, found in several]))["ci95"]
        for name in STATISTICS:
            bounds = ci95[name]
            if bounds is not None:
                given[name] += 1
                covered[name] += bounds[0] * (1 - 1e-6) <= true[name] <= bounds[1] * (1 + 1e-6)
    print(f"M/{service}/1 load {rho}, {runs} x {count}:", {n: (given[n], covered[n]) for n in STATISTICS})
    for name in STATISTICS:
        missed = given[name] - covered[name]
        assert missed <= max(0.1 * given[name], 0.02 * REPEATS), (name, given[name], covered[name])
