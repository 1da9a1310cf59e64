"""Is chunked prefill on a unified pool close enough to prefill and decode apart?

    python -m tests.bench.design_sweep [WORKLOAD]

For 2 to 32 GPUs, three workloads and two limits of TPOT: the highest rate a GPU at which 90% of the requests are within
the limits, of a unified pool at its best chunk size, and of prefill and decode pools at their best split. It takes some
minutes a workload.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simulator.api.runs import run
from simulator.scenario import parse_scenario

GPUS = (2, 4, 8, 16, 32)
BUDGETS = (512, 1024, 2048)
TPOT_MS = (50, 20)
#: Requests of a run at least, and seconds of arrivals at least and in mean answers at 50 ms a token, so that batches
#: reach their size; the first quarter, in which they grow, is not counted.
FEWEST, SECONDS, ANSWERS, UNCOUNTED = 2000, 60, 4, 0.25
#: Of the requests that must be within the limits; between rates that are tried; and between those in the end.
ATTAINMENT, STRIDE, PRECISION = 0.9, 1.2, 1.05
_FIRST_GUESS, _LOWEST = 8.0, 0.05
_MODEL, _GPU = "llama-3.1-8b", "h100-sxm"
_SCHEDULER = {"version": "none", "async_scheduling": True, "max_num_seqs": 512}


@dataclass(frozen=True, slots=True)
class Load:
    """A workload and its limit of TTFT, in s."""

    name: str
    prompt: int
    output: int
    ttft_s: float


LOADS = (
    Load("chat", 1000, 200, 0.5),
    Load("long prompts", 6000, 100, 2.0),
    Load("long answers", 200, 600, 0.5),
)


def unified(gpus: int, budget: int) -> dict[str, Any]:
    """Return a deployment of equal replicas with chunked prefill."""
    scheduler = _SCHEDULER | {"max_num_batched_tokens": budget}
    return {"pools": {"main": {"gpu": _GPU, "replicas": gpus, "scheduler": scheduler}}}


def split(gpus: int, prefills: int) -> dict[str, Any]:
    """Return prefill and decode replicas, with vLLM's transfer of KV."""
    scheduler = _SCHEDULER | {"max_num_batched_tokens": 8192}
    pool = {"gpu": _GPU, "scheduler": scheduler}
    prefill = pool | {"role": "prefill", "replicas": prefills}
    return {"pools": {"prefill": prefill, "decode": pool | {"role": "decode", "replicas": gpus - prefills}}}


def attainment(deployment: dict[str, Any], gpus: int, load: Load, rate: float) -> dict[int, float]:
    """Return the share of requests within both limits at `rate` a second and GPU, for each limit of TPOT."""

    def law(mean: int) -> dict[str, Any]:
        return {"distribution": "lognormal", "mean": mean, "cv": 0.8, "min": 2, "max": 8 * mean}

    workload = {
        "arrivals": {"process": "poisson", "rate": rate * gpus},
        "requests": max(FEWEST, round(rate * gpus * max(SECONDS, ANSWERS * load.output * 0.05))),
        "prompt_tokens": law(load.prompt),
        "output_tokens": law(load.output),
    }
    document = {"name": "sweep", "model": _MODEL, "workload": workload, "deployment": deployment}
    requests = run(parse_scenario(json.dumps(document | {"router": {"policy": "least_requests"}}))).record.requests
    ttft_s = (requests.first_token_ns - requests.arrival_ns) / 1e9
    tpot_ms = (requests.finish_ns - requests.first_token_ns) / 1e6 / np.maximum(requests.emitted_tokens - 1, 1)
    kept = slice(int(UNCOUNTED * len(ttft_s)), None)
    return {limit: float(np.mean((ttft_s <= load.ttft_s)[kept] & (tpot_ms <= limit)[kept])) for limit in TPOT_MS}


class Goodput:
    """The highest rates of deployments; a run answers for all limits, and is not done twice."""

    def __init__(self, gpus: int, load: Load) -> None:
        self._gpus, self._load = gpus, load
        self._known: dict[tuple[str, float], dict[int, float]] = {}

    def highest(self, deployment: dict[str, Any], limit: int, guess: float) -> float:
        """Return requests a second and GPU, within `PRECISION`; 0 if not even a very low rate is within the limits."""
        low = high = guess
        while not self._within(deployment, limit, low):
            low, high = low / STRIDE, low
            if low < _LOWEST:
                return 0.0
        while low == high or self._within(deployment, limit, high):
            low, high = high, high * STRIDE
        while high > PRECISION * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self._within(deployment, limit, middle) else (low, middle)
        return low

    def _within(self, deployment: dict[str, Any], limit: int, rate: float) -> bool:
        key = (json.dumps(deployment), rate)
        if key not in self._known:
            self._known[key] = attainment(deployment, self._gpus, self._load, rate)
        return self._known[key][limit] >= ATTAINMENT


def best(choices: list[int], goodput: Callable[[int], float]) -> tuple[int, float]:
    """Return the choice with the highest goodput."""
    rates = [goodput(choice) for choice in choices]
    at = int(np.argmax(rates))
    return choices[at], rates[at]


def splits_to_try(gpus: int, before: int | None) -> list[int]:
    """Numbers of prefill replicas: all of a small deployment, else those around twice the best of half as many GPUs."""
    if before is None or gpus <= 4:
        return list(range(1, gpus))
    return [prefills for prefills in range(2 * before - 1, 2 * before + 2) if 0 < prefills < gpus]


def sweep(load: Load, limit: int) -> Iterator[tuple[int, float, int, float, int]]:
    """Return GPUs, goodput a GPU of a unified pool with its chunk, and of the best split with its prefill replicas."""
    together, apart = _FIRST_GUESS, _FIRST_GUESS
    budgets, before = list(BUDGETS), None
    for gpus in GPUS:
        found = Goodput(gpus, load)
        highest = partial(found.highest, limit=limit)
        budget, together = best(budgets, lambda n: highest(unified(gpus, n), guess=together or _LOWEST))  # noqa: B023
        budgets = [budget]  # replicas of a unified pool hardly know of each other
        choices = splits_to_try(gpus, before)
        before, apart = best(choices, lambda n: highest(split(gpus, n), guess=apart or _LOWEST))  # noqa: B023
        yield gpus, together, budget, apart, before


def main() -> None:
    print("| workload | TPOT, ms | GPUs | unified | chunk | apart | split | apart / unified |\n|" + "---|" * 8)
    for load in (load for load in LOADS if load.name in sys.argv[1:] or len(sys.argv) == 1):
        for limit in TPOT_MS:
            for gpus, together, budget, apart, prefills in sweep(load, limit):
                ratio = f"{apart / together:.2f}" if together else "-"
                names = f"{budget} | {apart:.1f} | {prefills}P{gpus - prefills}D"
                print(f"| {load.name} | {limit} | {gpus} | {together:.1f} | {names} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
