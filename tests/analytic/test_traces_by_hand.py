"""Runs that can be followed by hand: exact to the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import PLACEHOLDER, request_table, run, scenario

UNIT_STEP = {"base": "1s"}
S = 10**9


def test_preemption_of_the_last_admitted() -> None:
    """Two requests of 64 + 64 tokens in 10 blocks of 16: the second is preempted when the pool is full."""
    table = request_table([0, 0], [64, 64], [64, 64])
    finished = run(scenario(PLACEHOLDER, UNIT_STEP, memory={"kv_blocks": 10}), table)
    requests, engine = finished.record.requests, finished.summary["engine"]
    assert engine["preemptions"] == 1
    assert engine["recomputed_tokens"] == 80
    assert engine["steps"] == 111
    assert requests.preemptions.tolist() == [0, 1]
    assert requests.finish_ns.tolist() == [64 * S, 111 * S]
    # Step 0 computes both prompts; the 17th decode finds no block: 16 decodes and the prompt are lost.
    second = finished.record.segments.request == 1
    assert finished.record.segments.first_step[second].tolist() == [0, 64]
    assert finished.record.segments.last_step[second].tolist() == [16, 110]
    # It returns when the first has finished, and recomputes the 80 and the token that it had sampled last: 81.
    assert finished.record.steps.prefill_tokens[64] == 81
    assert finished.summary["latency"]["itl_ms"]["max"] == 48_000


def test_ample_memory() -> None:
    table = request_table([0, 0], [64, 64], [64, 64])
    finished = run(scenario(PLACEHOLDER, UNIT_STEP, memory={"kv_blocks": 100}), table)
    assert finished.summary["engine"]["steps"] == 64
    assert finished.summary["engine"]["preemptions"] == 0


def test_throughput_of_a_full_batch() -> None:
    """32 sequences at a TPOT of 25 ms are 1,280 tokens a second."""
    finished = run(scenario(PLACEHOLDER, {"base": "25ms"}), request_table([0] * 32, [1] * 32, [400] * 32))
    latency = finished.summary["latency"]
    assert latency["tpot_ms"]["mean"] == latency["tpot_ms"]["max"] == 25
    assert finished.summary["throughput"]["output_tokens_per_s"] == 1280


def test_end_to_end_is_ttft_and_the_gaps_after_it() -> None:
    finished = run(
        scenario(PLACEHOLDER, {"base": "25ms", "per_prefill_token": "1ms"}), request_table([0], [775], [500])
    )
    latency = finished.summary["latency"]
    assert latency["ttft_ms"]["mean"] == 800
    assert latency["tpot_ms"]["mean"] == 25
    assert latency["e2e_ms"]["mean"] == 13_275


def test_asynchronous_scheduling_sees_an_arrival_one_step_later() -> None:
    """The second request comes during step 0. Synchronously it is in step 1; asynchronously that is formed already."""
    table = request_table([0, S // 2], [10, 10], [5, 5])
    first_token_s = {}
    for asynchronous in (False, True):
        finished = run(scenario(PLACEHOLDER, UNIT_STEP, scheduler={"async_scheduling": asynchronous}), table)
        first_token_s[asynchronous] = (finished.record.requests.first_token_ns // S).tolist()
    assert first_token_s == {False: [1, 2], True: [1, 3]}


def test_asynchronous_scheduling_wastes_a_step_on_an_end_that_it_cannot_foresee() -> None:
    """The client allows 20 tokens and the model stops after 5: one more step has been formed when that is known."""
    scheduler = {"async_scheduling": True}
    foreseen = run(scenario(PLACEHOLDER, UNIT_STEP, scheduler=scheduler), request_table([0], [10], [5]))
    unforeseen = run(scenario(PLACEHOLDER, UNIT_STEP, scheduler=scheduler), request_table([0], [10], [5], [20]))
    assert (len(foreseen.record.steps.end_ns), len(unforeseen.record.steps.end_ns)) == (5, 6)
    for finished in (foreseen, unforeseen):
        assert finished.record.requests.finish_ns.tolist() == [5 * S]
        assert finished.record.requests.emitted_tokens.tolist() == [5]


@pytest.mark.parametrize(
    ("device", "host", "depth", "expected_ms"),
    [("10ms", "2ms", 1, 12.0), ("10ms", "2ms", 2, 10.0), ("2ms", "20ms", 1, 22.0), ("2ms", "20ms", 2, 20.0)],
)
def test_a_step_takes_the_sum_of_host_and_device_or_the_longer_where_they_overlap(
    device: str, host: str, depth: int, expected_ms: float
) -> None:
    law = {"base": device, "host": host}
    finished = run(
        scenario(PLACEHOLDER, law, scheduler={"async_scheduling": depth == 2}), request_table([0], [1], [100])
    )
    gaps_ms = np.diff(finished.record.steps.end_ns) / 1e6
    assert set(gaps_ms.tolist()) == {expected_ms}
