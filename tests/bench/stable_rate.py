"""The highest stable rate of a benchmark scenario, by bisection: `python -m tests.bench.stable_rate [SCENARIO]`.

A rate is stable if the queue of waiting requests does not grow, by the same test that warns of an unstable queue. The
benchmark scenarios run at fixed shares of the rate that this prints.
"""

from __future__ import annotations

import sys

from simulator.common.shipped import find_scenario
from simulator.results.record import RunRecord
from simulator.results.stability import unstable
from simulator.scenario import load_scenario
from simulator.study.prepare import prepare
from simulator.study.run import execute

REQUESTS = 50_000
PRECISION = 0.005


def run_at(name: str, rate: float, requests: int = REQUESTS) -> RunRecord:
    """Return the scenario's replica at `rate` requests a second."""
    overrides = [f"workload.arrivals.rate={rate}", f"workload.requests={requests}"]
    return execute(prepare(load_scenario(find_scenario(name), overrides))).record


def highest_stable_rate(name: str, low: float = 1.0, high: float = 100.0, requests: int = REQUESTS) -> float:
    """Return the highest rate, within `PRECISION` of itself, at which the scenario is stable."""
    while high - low > PRECISION * low:
        middle = (low + high) / 2
        if unstable(run_at(name, middle, requests)):
            high = middle
        else:
            low = middle
    return low


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "bench/steady_100k"
    rate = highest_stable_rate(name)
    print(f"{name}: highest stable rate {rate:.2f}/s")
    for share in (0.75, 0.9):
        steps = run_at(name, share * rate).steps
        print(f"  at {share:.0%}: {share * rate:.2f}/s, mean batch {steps.running.mean():.1f}")


if __name__ == "__main__":
    main()
