"""Queueing theory: deployments so simple that their latencies have closed forms.

A server of unit speed is a replica that runs one request at a time (`max_num_seqs` 1) and takes 100 us a prompt token,
so that a prompt of 10,000 tokens is a service time of 1 s. c servers of constant speed are a batch of at most c decodes
under a step time that does not depend on the batch. Where a run is random the closed form must lie within two
half-widths of the 95% batch-means interval, and that interval must be narrow. Where the summary's is wider, or absent,
since one run cannot be sure of it, that interval is of the plain batch means.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simulator.common.randomness import stream
from simulator.results.statistics import Distribution
from simulator.results.warmup import select
from simulator.study.run import Run
from tests.helpers import PLACEHOLDER, request_table, run, scenario

TOKENS_PER_S = 10_000
SERVER = {"per_prefill_token": "100us"}
ONE_AT_A_TIME = {"max_num_seqs": 1}


def exponential(mean_s: float) -> dict[str, Any]:
    return {"distribution": "exponential", "mean": mean_s * TOKENS_PER_S}


def workload(arrivals: dict[str, Any], requests: int, prompt: Any, output: Any = 1) -> dict[str, Any]:
    return {"arrivals": arrivals, "requests": requests, "prompt_tokens": prompt, "output_tokens": output}


def poisson(rate: float) -> dict[str, Any]:
    return {"process": "poisson", "rate": rate}


def assert_mean(block: dict[str, Any], expected_ms: float, narrow: float) -> None:
    """Verify that the closed form is within two half-widths of the mean, which are at most `narrow` of it."""
    low, high = block["ci95"]["mean"]
    assert abs(block["mean"] - expected_ms) <= high - low, (block["mean"], expected_ms, low, high)
    assert high - low <= 2 * narrow * expected_ms, (low, high)


def assert_series_mean(values: np.ndarray, expected: float, narrow: float) -> None:
    interval = Distribution.of_series(values).mean_interval()
    assert interval is not None
    low, high = interval
    assert abs(values.mean() - expected) <= high - low, (values.mean(), expected, low, high)
    assert high - low <= 2 * narrow * expected, (low, high)


def e2e_ms(finished: Run) -> np.ndarray:
    """Return the E2E of the counted requests, in order of arrival."""
    requests = finished.record.requests
    kept = select(finished.record, finished.scenario.run.warmup).kept
    return (requests.finish_ns - requests.arrival_ns)[kept] / 1e6


def test_mm1() -> None:
    summary = run(
        scenario(workload(poisson(0.8), 150_000, exponential(1)), SERVER, scheduler=ONE_AT_A_TIME, seed=1)
    ).summary
    latency = summary["latency"]
    assert_mean(latency["queue_ms"], 4_000, 0.1)
    assert_mean(latency["e2e_ms"], 5_000, 0.1)
    assert latency["e2e_ms"]["p50"] == pytest.approx(3_465.74, rel=0.06)
    assert latency["e2e_ms"]["p95"] == pytest.approx(14_978.7, rel=0.08)
    assert latency["e2e_ms"]["p99"] == pytest.approx(23_025.9, rel=0.10)
    assert summary["engine"]["busy_share"] == pytest.approx(0.8, rel=0.02)


def test_md1() -> None:
    summary = run(
        scenario(workload(poisson(0.8), 100_000, TOKENS_PER_S), SERVER, scheduler=ONE_AT_A_TIME, seed=2)
    ).summary
    queue = summary["latency"]["queue_ms"]
    assert_mean(queue, 2_000, 0.08)
    assert queue["p95"] == pytest.approx(6_620.3, rel=0.06)
    assert queue["p99"] == pytest.approx(10_355.9, rel=0.10)


def test_mg1_head_of_line_blocking() -> None:
    parts = [{"weight": 0.9, "law": 0.1 * TOKENS_PER_S}, {"weight": 0.1, "law": 2 * TOKENS_PER_S}]
    classes = [
        {
            "name": name,
            "weight": part["weight"],
            "prompt_tokens": int(part["law"]),
            "output_tokens": 1,
        }
        for name, part in zip(("short", "long"), parts, strict=True)
    ]
    load = {"arrivals": poisson(2), "requests": 150_000, "classes": classes}
    finished = run(scenario(load, SERVER, scheduler=ONE_AT_A_TIME, seed=3))
    ttft_ms, class_id = e2e_ms(finished), finished.record.requests.class_id  # of answers of one token
    assert_mean(finished.summary["latency"]["queue_ms"], 973.81, 0.06)
    # A short request takes 0.1 s of work and more than a second of time: it waits behind the long ones.
    assert_series_mean(ttft_ms[class_id == 0], 1_073.81, 0.05)
    assert_series_mean(ttft_ms[class_id == 1], 2_973.81, 0.05)


STEP_S = 0.02


@pytest.mark.parametrize(
    ("output", "expected_s", "narrow"),
    [({"distribution": "geometric", "mean": 50}, 0.745541, 0.09), (50, 0.386095, 0.07)],
    ids=["a4_mmc", "a5_mdc"],
)
def test_four_servers_and_one_queue(output: Any, expected_s: float, narrow: float) -> None:
    summary = run(
        scenario(workload(poisson(3.2), 150_000, 1, output), {"base": "20ms"}, scheduler={"max_num_seqs": 4}, seed=4)
    ).summary
    # Steps start every 20 ms while the replica is busy, so that an arrival also waits for half a step on average.
    assert_mean(summary["latency"]["queue_ms"], (expected_s + STEP_S / 2) * 1e3, narrow)
    if output != 50:
        assert summary["latency"]["queue_ms"]["p95"] == pytest.approx(3_098.7, rel=0.08)


def test_closed_loop() -> None:
    arrivals = {
        "process": "closed_loop",
        "concurrency": 32,
        "think_time": {"mean": "5s", "distribution": "exponential"},
    }
    finished = run(
        scenario(
            workload(arrivals, 60_000, exponential(0.1)), SERVER, scheduler=ONE_AT_A_TIME, seed=7, run={"warmup": "60s"}
        )
    )
    rate, response_s = (
        finished.summary["throughput"]["requests_per_s"],
        finished.summary["latency"]["e2e_ms"]["mean"] / 1e3,
    )
    assert rate == pytest.approx(6.11501, rel=0.01)
    assert_series_mean(e2e_ms(finished), 233.024, 0.05)
    assert rate * (response_s + 5) == pytest.approx(32, rel=0.01)  # the interactive law


DECODE = {"base": "10ms", "per_token": "100us"}


@pytest.mark.parametrize("output", [{"distribution": "geometric", "mean": 200}, 200], ids=["geometric", "fixed"])
def test_batch_dependent_processor_sharing(output: Any) -> None:
    summary = run(scenario(workload(poisson(10), 100_000, 1, output), DECODE, seed=8)).summary
    # The closed form has no steps: a request waits half a step for its first one, 6.3 ms of 2.5 s.
    assert_mean(summary["latency"]["e2e_ms"], 2_525 + 6.3, 0.012)
    assert summary["engine"]["mean_running"] == pytest.approx(25.25, rel=0.02)
    assert summary["latency"]["e2e_ms"]["mean"] / 200 == pytest.approx(12.625, rel=0.015)


def test_a_cap_that_suffices_and_one_that_does_not() -> None:
    load = workload(poisson(10), 120_000, 1, {"distribution": "geometric", "mean": 200})
    enough = run(scenario(load, DECODE, scheduler={"max_num_seqs": 32}, seed=8)).summary
    # What the cap adds is the wait for a slot, 81.9 ms; half a step of 12.6 ms comes on top.
    assert_mean(enough["latency"]["queue_ms"], 81.9 + 6.3, 0.3)
    assert_mean(enough["latency"]["e2e_ms"], 2_602.6 + 6.3, 0.015)
    assert "unstable_queue" not in {warning["code"] for warning in enough["warnings"]}
    load["requests"] = 30_000
    too_few = run(scenario(load, DECODE, scheduler={"max_num_seqs": 24}, seed=8)).summary
    # 24 slots serve 9.677 requests a second, and 10 come.
    assert too_few["throughput"]["requests_per_s"] == pytest.approx(9.67742, rel=0.01)
    assert "unstable_queue" in {warning["code"] for warning in too_few["warnings"]}


@pytest.mark.parametrize(
    ("router", "replicas", "requests", "expected_s", "narrow"),
    [
        ({"policy": "random"}, 8, 400_000, 10.0, 0.15),
        ({"policy": "power_of_d", "d": 2}, 250, 400_000, 2.61406, 0.03),
        ({"policy": "power_of_d", "d": 3}, 250, 120_000, 2.02786, 0.04),
        ({"policy": "round_robin"}, 8, 400_000, 5.78071, 0.11),
    ],
    ids=["random", "power_of_two", "power_of_three", "round_robin"],
)
def test_routers(router: dict[str, Any], replicas: int, requests: int, expected_s: float, narrow: float) -> None:
    finished = run(
        scenario(
            workload(poisson(0.9 * replicas), requests, exponential(1)),
            SERVER,
            scheduler=ONE_AT_A_TIME,
            replicas=replicas,
            router=router,
            seed=9,
        )
    )
    served = finished.record.requests
    sojourn_s = (served.finish_ns - served.arrival_ns) / 1e9
    assert_series_mean(sojourn_s[len(sojourn_s) // 8 :], expected_s, narrow)


def test_one_queue_for_eight_servers() -> None:
    """The lower bound of every router: M/M/8, a batch of at most 8 requests with 50 steps of 20 ms on average."""
    load = workload(poisson(7.2), 100_000, 1, {"distribution": "geometric", "mean": 50})
    finished = run(scenario(load, {"base": "20ms"}, scheduler={"max_num_seqs": 8}, seed=9))
    assert_series_mean(e2e_ms(finished), 1_876.92 + 10, 0.08)  # an arrival waits for half a step


def test_a_barrier_lasts_as_long_as_the_slowest_of_eight_ranks() -> None:
    """Each rank has one prompt a step, exp(1) of work: steps last H_8 = 1 + 1/2 + ... + 1/8 on average."""
    ranks, steps = 8, 4_000
    load = workload({"process": "all_at_once"}, ranks * steps, exponential(1))
    asked = scenario(load, SERVER, scheduler=ONE_AT_A_TIME, pool={"data_parallel": ranks}, model="deepseek-r1", seed=9)
    record = run(asked).record
    assert np.diff(record.steps.offsets).tolist() == [steps] * ranks
    lasted_s = (record.steps.end_ns - record.steps.start_ns)[:steps] / 1e9
    assert_series_mean(lasted_s, 2.71786, 0.02)
    own_s = np.sort(record.requests.prompt_tokens.reshape(steps, ranks), axis=1)[:, -1] / TOKENS_PER_S
    assert np.array_equal(np.sort(lasted_s), np.sort(own_s))


def test_some_rank_prefills_with_the_chance_of_independent_ranks() -> None:
    """P(some rank prefills in a step) = 1 - (1 - p)^8, if each does with the chance p.

    All steps take 100 ms, so that arrivals at the ranks are independent; one long decode keeps the ranks stepping.
    """
    ranks, steps, step_s, rate = 8, 20_000, 0.1, 12.0
    gaps = stream(9, "arrivals").exponential(1 / rate, int(0.98 * rate * steps * step_s))
    arrivals = [0, *np.round(1e9 * np.cumsum(gaps)).astype(np.int64).tolist()]
    table = request_table(arrivals, [1] + [100] * len(gaps), [steps] + [1] * len(gaps))
    law, router = {"base": "100ms"}, {"policy": "random"}
    asked = scenario(PLACEHOLDER, law, pool={"data_parallel": ranks}, model="deepseek-r1", router=router, seed=9)
    record = run(asked, table).record
    prefills = np.zeros((ranks, steps), bool)
    for rank, (first, last) in enumerate(pairwise(record.steps.offsets)):
        numbers = (record.steps.start_ns[first:last] / (step_s * 1e9)).round().astype(int)
        prefills[rank, numbers] = record.steps.prefill_tokens[first:last] > 0
    seen = prefills[:, 1 : int(0.97 * steps)]
    each = seen.mean(axis=1)
    assert each == pytest.approx([1 - math.exp(-rate / ranks * step_s)] * ranks, rel=0.06)  # 3 standard deviations
    assert seen.any(axis=0).mean() == pytest.approx(1 - np.prod(1 - each), rel=0.015)


BULK = {"base": "20ms", "per_token": "2ms"}


@pytest.mark.parametrize(
    ("cap", "expected_ms", "requests", "narrow"),
    [
        (10**6, 79.0625, 150_000, 0.02),
        (16, 127.364, 500_000, 0.12),  # at 97.5% of its capacity: long memory, wide intervals
        (32, 79.0698, 150_000, 0.02),
        (64, 79.0625, 150_000, 0.02),
    ],
)
def test_bulk_service(cap: int, expected_ms: float, requests: int, narrow: float) -> None:
    """Prompts of one token, all waiting ones at once: M/D^b/1 with a service time of 20 + 2 b ms."""
    load = workload(poisson(300), requests, 1)
    finished = run(scenario(load, BULK, scheduler={"max_num_seqs": cap}, seed=10))
    assert_series_mean(e2e_ms(finished), expected_ms, narrow)
    assert finished.summary["engine"]["mean_batch"] == pytest.approx(15, rel=0.01)


@pytest.mark.parametrize(
    ("cv2", "expected_s", "requests", "narrow"),
    [(0.5, 3.84398, 100_000, 0.1), (1, 5.0, 150_000, 0.1), (4, 11.9552, 200_000, 0.15), (16, 39.804, 400_000, 0.2)],
)
def test_bursty_arrivals(cv2: float, expected_s: float, requests: int, narrow: float) -> None:
    arrivals = {"process": "gamma", "rate": 0.8, "cv": math.sqrt(cv2)}
    finished = run(scenario(workload(arrivals, requests, exponential(1)), SERVER, scheduler=ONE_AT_A_TIME, seed=11))
    assert_series_mean(e2e_ms(finished), expected_s * 1e3, narrow)


def test_burstiness_is_the_inverse_of_the_squared_cv() -> None:
    laws = ({"cv": 2.0}, {"burstiness": 0.25})
    records = [run(scenario(workload({"process": "gamma", "rate": 5, **law}, 200, 10), SERVER)).record for law in laws]
    assert np.array_equal(records[0].requests.arrival_ns, records[1].requests.arrival_ns)
