"""Ratios of the cost of two commands that run in turn, and the limits of these ratios.

A ratio does not depend on the speed of the machine as CPU seconds do. Commands in turn share its mood.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path

from tests.bench.commands import Command, Usage, run_of
from tests.conftest import ROOT

#: Least probability that the interval of a median covers it, if there are enough values.
_COVERAGE = 0.9
#: Least number of values with such an interval.
_ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest ratio of the CPU times of two commands, and the highest peak memory of the first in MB.

    A long one is measured only if it is named.
    """

    name: str
    numerator: Command
    denominator: Command
    ratio: float
    peak_mb: float | None = None
    long: bool = False

    def missing(self) -> Path | None:
        """Return the folder that a command runs in if it does not exist."""
        folders = (self.numerator.folder, self.denominator.folder)
        return next((folder for folder in folders if not folder.is_dir()), None)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two medians of CPU time, an interval for it from the ratios of each turn, and the medians."""

    value: float
    low: float
    high: float
    numerator: Usage
    denominator: Usage

    def meets(self, limit: Limit) -> bool:
        """Return whether the ratio and the memory are within their limits."""
        return self.value <= limit.ratio and (limit.peak_mb is None or self.numerator.peak_mb <= limit.peak_mb)


def ratio_of(numerators: Sequence[Usage], denominators: Sequence[Usage]) -> Ratio:
    """Return the ratio of commands that ran in turn."""
    first, second = median_usage(numerators), median_usage(denominators)
    pairs = [one.cpu_s / other.cpu_s for one, other in zip(numerators, denominators, strict=True)]
    return Ratio(first.cpu_s / second.cpu_s, *median_interval(pairs), first, second)


def median_usage(usages: Sequence[Usage]) -> Usage:
    """Return the medians of CPU time and of memory."""
    return Usage(
        statistics.median(usage.cpu_s for usage in usages), statistics.median(usage.peak_mb for usage in usages)
    )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest interval between two of the values, equally far from the ends, that covers the median of
    their distribution with a probability of 90%; the least and the greatest value if there are fewer than five.

    The number of values below the median is binomial: Conover, "Practical Nonparametric Statistics", 3.2.
    """
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0
    for below in range(count // 2):
        outside += 2 * comb(count, below) / 2**count
        if outside > 1 - _COVERAGE:
            break
        cut = below
    return ordered[cut], ordered[-1 - cut]


def interval_name(runs: int) -> str:
    """Return the kind of interval for this number of runs."""
    return f"interval: {_COVERAGE:.0%}" if runs >= _ENOUGH else "least to greatest"


def with_out(command: Command) -> Command:
    """Return a command that also writes the results directory."""
    return replace(command, arguments=(*command.arguments, "--out", "OUT"))


PROTOTYPE = Command(("run.py", "v3_lazy", "100000", "33"), ROOT.parent / "shared" / "proto")
IMPORT_NUMPY = Command(("-c", "import numpy"))
START = run_of("quickstart", "--trace", "TEN")
STEADY = run_of("bench/steady_100k")
SMALL = run_of("bench/steady_100k", "workload.requests=2000")
MILLION = run_of("bench/steady_100k", "workload.requests=1000000")
SPECULATIVE = run_of("bench/speculative_100k")
FLEET = run_of("bench/fleet_1m")
DEFAULTS = run_of("bench/defaults_100k")
DENSE = run_of("bench/dense_100k")
PROMPT_POOL = run_of("bench/prompt_pool_12k")
PAIR, APART = run_of("bench/pair_100k"), run_of("bench/apart_100k")

_ROUTERS = ("round_robin", "random", "least_requests", "least_tokens", "least_waiting", "power_of_d")


def _apart_at(rate: int, name: str) -> Command:
    """Return the run of a benchmark with two GPUs at `rate` requests a second."""
    return run_of(f"bench/{name}_100k", f"workload.arrivals.rate={rate}", "workload.requests=50000")


def _routed(router: str, replicas: int) -> Command:
    """Return a run that does little but choose replicas: one step a request, the same load on each replica."""
    pool = f"deployment.pools.main.replicas={replicas}"
    load = ("workload.requests=50000", "workload.output_tokens=1", f"workload.arrivals.rate={10 * replicas}")
    return run_of("bench/fleet_1m", f"router.policy={router}", pool, *load)


LIMITS = (
    Limit("steady_100k / prototype", STEADY, PROTOTYPE, 3.2),
    Limit("start / import numpy", START, IMPORT_NUMPY, 2.5, 100),
    Limit("steady_100k --out / without", with_out(STEADY), STEADY, 1.15, 300),
    Limit("2,000 requests --out / without", with_out(SMALL), SMALL, 1.15),
    Limit("fleet_1m / steady_100k", FLEET, STEADY, 10, 1000),
    Limit("1,000,000 requests / 100,000", with_out(MILLION), with_out(STEADY), 10, 1000),
    Limit(
        "10,000,000 requests / 1,000,000",
        with_out(run_of("bench/steady_100k", "workload.requests=10000000")),
        with_out(MILLION),
        10.5,
        2000,
        long=True,
    ),
    Limit("speculation / plain, by output token", with_out(SPECULATIVE), with_out(STEADY), 2.0, 300),
    *(
        Limit(f"apart / unified at {rate}/s", _apart_at(rate, "apart"), _apart_at(rate, "pair"), 1.2)
        for rate in (12, 24, 30)
    ),
    *(Limit(f"{router}: 1,000 replicas / 16", _routed(router, 1000), _routed(router, 16), 2.0) for router in _ROUTERS),
    Limit("defaults_100k / steady_100k", with_out(DEFAULTS), with_out(STEADY), 2.0, 300),
    Limit("dense_100k / steady_100k", with_out(DENSE), with_out(STEADY), 1.0, 300),
    Limit("prompt_pool_12k / steady_100k", with_out(PROMPT_POOL), with_out(STEADY), 0.6, 300),
)
