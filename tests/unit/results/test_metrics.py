"""The summary: definitions, conservation and sections, on records small enough to be checked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.common.notes import Note
from simulator.results.columns import Refusal, Status, StepColumns
from simulator.results.latency import in_arrival_order, number, tpot_ns
from simulator.results.metrics import summarise
from simulator.results.occupancy import Occupancy
from simulator.results.record import RunRecord
from simulator.results.segments import token_times
from tests.unit.results.synthetic import MS, SECOND, queue_record, refused, replay, scenario, single_server


def by_hand() -> RunRecord:
    """Return three requests on one replica with steps of exactly 10 ms: arrivals at 0, 5 and 12 ms; 3, 1 and 2 tokens.

    Steps end at 10, 20, 30 and 40 ms; the first gives a token to 0; the second to 0 and 1; the third to 0 and 2; the
    fourth to 2.
    """
    return replay(
        [0, 5 * MS, 12 * MS],
        [100, 300, 2000],
        [3, 1, 2],
        token_ns=0,
        kv_blocks=200,
        class_id=[0, 1, 1],
        class_names=("chat", "batch"),
    )


def with_status(record: RunRecord, **statuses: Status) -> RunRecord:
    """Return the record with other statuses: `r1=Status.IN_FLIGHT`."""
    requests = record.requests
    columns = {name: np.array(getattr(requests, name)) for name in ("status", "finish_ns", "emitted_tokens", "refusal")}
    for name, status in statuses.items():
        row = int(name[1:])
        columns["status"][row] = status
        columns["finish_ns"][row] = -1
        if status is Status.REJECTED:
            columns["refusal"][row] = Refusal.CONTEXT_LIMIT
            columns["emitted_tokens"][row] = 0
    return replace(record, requests=replace(requests, **columns))


def latency(record: RunRecord, *overrides: str) -> dict[str, Any]:
    blocks: dict[str, Any] = summarise(record, scenario(*overrides))["latency"]
    return blocks


# --- definitions


def test_latencies_by_hand() -> None:
    blocks = latency(by_hand())
    assert list(blocks) == ["ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms", "stall_ms"]
    assert blocks["queue_ms"]["mean"] == pytest.approx((0 + 5 + 8) / 3)
    assert blocks["ttft_ms"]["p50"] == 15  # 10, 20 - 5, 30 - 12
    assert blocks["ttft_ms"]["max"] == 18
    assert blocks["e2e_ms"]["mean"] == pytest.approx((30 + 15 + 28) / 3)
    assert blocks["itl_ms"] == {
        **dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), 10),
        "std": 0,
        "count": 3,
        "ci95": dict.fromkeys(("mean", "p50", "p95", "p99")),
        "ci95_reason": dict.fromkeys(("mean", "p50", "p95", "p99"), "load_unknown"),
    }
    assert blocks["tpot_ms"]["count"] == 2  # the answer of one token has none


def test_tpot_is_of_requests_and_itl_of_tokens() -> None:
    """11 tokens at 100 ms gaps and 101 tokens at 20 ms gaps: TPOT 60 ms, ITL 27.27 ms."""
    ends = np.concatenate([np.arange(1, 12) * 100 * MS, np.arange(1, 102) * 20 * MS])
    one = replay([0, 0], [10, 10], [11, 101], replicas=2)
    record = replace(
        one,
        requests=replace(one.requests, first_token_ns=ends[[0, 11]], finish_ns=ends[[10, 111]]),
        steps=replace(one.steps, end_ns=ends),
    )
    blocks = latency(record)
    assert blocks["tpot_ms"]["mean"] == 60
    assert blocks["itl_ms"]["mean"] == pytest.approx(27.2727, rel=1e-5)


def test_the_latency_identity_holds_for_every_request() -> None:
    """E2E = TTFT + (tokens - 1) x TPOT, exactly."""
    rng = np.random.default_rng(30)
    arrival = np.sort(rng.integers(0, SECOND, 80))
    record = replay(arrival, rng.integers(1, 500, 80), rng.integers(1, 70, 80), preempt_at=frozenset({9, 30}))
    requests = record.requests
    e2e, ttft = requests.finish_ns - requests.arrival_ns, requests.first_token_ns - requests.arrival_ns
    assert np.array_equal(np.rint(ttft + (requests.emitted_tokens - 1) * tpot_ns(requests)), e2e)
    for index in range(80):
        assert token_times(record, index)[-1] - requests.arrival_ns[index] == e2e[index]


def test_replicas_are_pooled() -> None:
    rng = np.random.default_rng(31)
    arrival = np.arange(40_000) * 10**12
    service = np.rint(rng.exponential(1, 40_000) * np.where(np.arange(40_000) % 2, 5, 1) * SECOND)
    pooled = latency(single_server(arrival, arrival, arrival + service))["ttft_ms"]["p95"] / 1e3
    assert pooled == pytest.approx(11.5134, rel=0.03)


def test_littles_law_on_a_path() -> None:
    """Arrivals 0, 1, 1.5, 4 and departures 3, 2, 5, 6: the area under the number in the system is 9.5."""
    arrivals, departures = np.array([0, 1, 1.5, 4]), np.array([3, 2, 5, 6])
    moments = np.unique(np.concatenate([arrivals, departures]))
    inside = np.array([((arrivals <= at) & (departures > at)).sum() for at in moments[:-1]])
    begins, ends = (moments[:-1] * SECOND).astype(np.int64), (moments[1:] * SECOND).astype(np.int64)
    zeros = np.zeros(len(inside), np.int64)
    steps = StepColumns(
        np.array([0, len(inside)]), begins, begins, ends, zeros, zeros, inside, zeros, zeros, zeros, zeros[:0]
    )
    record = replace(single_server([0], [0], [6 * SECOND]), steps=steps)
    assert Occupancy(record).mean(steps.running) * 6 == pytest.approx((departures - arrivals).sum()) == 9.5


def test_littles_law_holds_for_the_summary() -> None:
    """The mean number running is the rate times the mean time from scheduling to finish."""
    rng = np.random.default_rng(32)
    record = replay(np.sort(rng.integers(0, SECOND, 50)), rng.integers(1, 99, 50), rng.integers(1, 40, 50), token_ns=0)
    summary, requests = summarise(record, scenario()), record.requests
    served_s = float((requests.finish_ns - requests.scheduled_ns).mean() / SECOND)
    expected = summary["throughput"]["requests_per_s"] * served_s
    assert summary["engine"]["mean_running"] == pytest.approx(expected, rel=1e-6)


# --- counts and rates


def test_counts_and_rates_by_hand() -> None:
    summary = summarise(by_hand(), scenario("slo={ttft: 15ms}"), usd_per_hour=(3.6,))
    assert summary["requests"] == {
        "submitted": 3,
        "completed": 3,
        **dict.fromkeys(("rejected", "expired", "cancelled", "failed", "in_flight"), 0),
    }
    assert summary["duration_s"] == 0.04
    assert summary["throughput"] == {
        "requests_per_s": 75,
        "output_tokens_per_s": 150,
        "total_tokens_per_s": number(2406 / 0.04),
        "goodput_per_s": 50,
    }
    assert summary["engine"] == {
        "steps": 4,
        "mean_batch": 1.5,
        "mean_running": 1.5,
        "busy_share": 1,
        "preemptions": 0,
        "preempted_requests": 0,
        "recomputed_tokens": 0,
    }
    assert summary["kv"] == {
        "blocks": 200,
        "peak_use": 0.665,
        "mean_use": number((7 + 26 + 133 + 126) / 4 / 200),
        # For 30, 10 and 20 ms: 101 tokens in the mean in 112 slots, 300 in 304, and 2000.5 in (2000 + 2016) / 2.
        "wasted_share": number(1 - (30 * 101 + 10 * 300 + 20 * 2000.5) / (30 * 112 + 10 * 304 + 20 * 2008)),
    }
    assert summary["cost"] == {
        "gpu_hours": number(0.04 / 3600),
        "usd": 4e-5,
        "usd_per_1k_tokens": number(4e-5 / 2.406),
        "usd_per_million_output_tokens": number(4e-5 / 6 * 1e6),
    }


def test_every_request_is_accounted_for() -> None:
    record = with_status(by_hand(), r0=Status.NOT_ARRIVED, r1=Status.REJECTED, r2=Status.IN_FLIGHT)
    counts = summarise(record, scenario())["requests"]
    assert counts["submitted"] == 2
    assert (counts["completed"], counts["rejected"], counts["in_flight"], counts["not_arrived"]) == (0, 1, 1, 1)
    assert counts["rejected_reasons"] == {"context_limit": 1}


def test_a_lost_request_is_a_bug_and_not_a_number() -> None:
    record = by_hand()
    lost = replace(record, requests=replace(record.requests, status=np.array([2, 2, 99])))
    with pytest.raises(AssertionError, match="not conserved: 3 submitted, 2 found"):
        summarise(lost, scenario())


@pytest.mark.parametrize(
    ("slo", "good"),
    [("{ttft: 15ms}", 2), ("{e2e: 28ms}", 2), ("{tpot: 10ms}", 3), ("{tpot: 9ms}", 1), ("{ttft: 18ms, e2e: 20ms}", 1)],
)
def test_goodput_counts_requests_that_meet_every_limit(slo: str, good: int) -> None:
    rates = summarise(by_hand(), scenario(f"slo={slo}"))["throughput"]
    assert rates["goodput_per_s"] == number(good / 0.04)


def test_a_run_in_which_all_is_refused_has_counts_only() -> None:
    summary = summarise(refused(), scenario(), usd_per_hour=(1.0,))
    assert summary["requests"]["rejected_reasons"] == {"kv_pool": 1}
    assert summary["latency"] == {}
    assert summary["cost"] == {"gpu_hours": 0, "usd": 0}
    absent = {"throughput", "engine", "kv", "by_prompt_bucket", "by_output_bucket", "by_class", "warmup", "partial"}
    assert not absent & set(summary)


def test_preemptions_are_counted() -> None:
    record = replay([0, 0], [100, 100], [30, 30], preempt_at=frozenset({5, 10}))
    engine = summarise(record, scenario())["engine"]
    assert (engine["preemptions"], engine["preempted_requests"]) == (2, 1)
    assert engine["recomputed_tokens"] == 105 + 109


def test_idle_time_counts_for_shares_and_means_over_time() -> None:
    record = replay([0, 90 * MS], [16, 16], [1, 1], token_ns=0, kv_blocks=10)
    summary = summarise(record, scenario())
    assert summary["duration_s"] == 0.1
    assert summary["engine"]["busy_share"] == 0.2
    assert summary["engine"]["mean_running"] == 0.2
    assert summary["engine"]["mean_batch"] == 1
    assert summary["kv"]["mean_use"] == number(0.2 * 0.2)


# --- groups, warm-up, clocks


def test_groups_hold_the_same_blocks_and_only_what_occurred() -> None:
    summary = summarise(by_hand(), scenario())
    assert list(summary["by_class"]) == ["chat", "batch"]
    assert list(summary["by_prompt_bucket"]) == ["1-255", "256-1023", "1024-4095"]
    assert list(summary["by_output_bucket"]) == ["1-15"]
    stall = {"stall_ms": summary["latency"]["stall_ms"]}  # not reported by bucket
    assert summary["by_output_bucket"]["1-15"] | stall == summary["latency"]
    assert "stall_ms" in summary["by_class"]["chat"]
    assert summary["by_class"]["batch"]["ttft_ms"]["mean"] == 16.5
    assert summary["by_class"]["batch"]["itl_ms"]["count"] == 1
    assert "itl_ms" not in summary["by_prompt_bucket"]["256-1023"]


def test_bucket_edges() -> None:
    prompts = [255, 256, 1023, 1024, 4096, 16_384, 65_535, 65_536]
    record = replay(np.zeros(8, np.int64), prompts, [1] * 8, kv_blocks=10**6)
    buckets = summarise(record, scenario())["by_prompt_bucket"]
    counts = {name: blocks["ttft_ms"]["count"] for name, blocks in buckets.items()}
    assert counts == {"1-255": 1, "256-1023": 2, "1024-4095": 1, "4096-16383": 1, "16384-65535": 2, "65536+": 1}


def test_a_fixed_warm_up_leaves_out_early_arrivals() -> None:
    summary = summarise(by_hand(), scenario("run.warmup=5ms"))
    assert summary["warmup"] == {"rule": "fixed", "excluded_requests": 1, "cut_s": 0.005}
    assert summary["latency"]["ttft_ms"]["count"] == 2
    assert summary["throughput"]["requests_per_s"] == 75  # of the whole run


def test_mser5_leaves_out_the_transient() -> None:
    """50 requests with a TTFT of 10 s, then 450 with one around 1 s."""
    ttft = np.concatenate([np.full(50, 10.0), np.tile([1.1, 0.9, 1.1, 0.9, 1.0], 90)])
    arrival = np.arange(500) * 20 * SECOND
    record = single_server(arrival, arrival, arrival + np.rint(ttft * SECOND))
    summary = summarise(record, scenario("run.warmup=mser5"))
    assert summary["warmup"] == {"rule": "mser5", "excluded_requests": 50, "cut_s": 1000}
    assert summary["latency"]["ttft_ms"]["mean"] == pytest.approx(1000)


def test_the_clients_clock_appears_where_a_gate_held_requests_back() -> None:
    record = replay([0, 5 * MS], [10, 10], [1, 1], token_ns=0, client_ns=[0, 2 * MS])
    blocks = latency(record)
    assert blocks["ttft_ms"]["mean"] == (10 + 15) / 2
    assert blocks["client_ttft_ms"]["mean"] == (10 + 18) / 2
    assert blocks["client_e2e_ms"]["max"] == 18
    assert "client_ttft_ms" not in latency(by_hand())
    assert "client_ttft_ms" in latency(by_hand(), "workload.max_concurrency=64")


def test_intervals_contain_what_they_bound() -> None:
    blocks = latency(queue_record(np.random.default_rng(33), 4_000, 0.6))
    for block in blocks.values():
        for name, interval in block["ci95"].items():
            assert interval is None or interval[0] <= block[name] <= interval[1]
    assert blocks["e2e_ms"]["ci95"]["p50"] is not None


def test_intervals_of_times_do_not_begin_below_zero() -> None:
    """A few long waits among many of none: twice the error of their mean is more than the mean."""
    record = queue_record(np.random.default_rng(30), 300, 0.01)
    blocks = latency(record, "deployment.pools.main.scheduler.max_num_seqs=1")
    assert blocks["queue_ms"]["ci95"]["mean"][0] == 0
    assert all(bounds is None or bounds[0] >= 0 for block in blocks.values() for bounds in block["ci95"].values())


def test_arrival_order_and_not_request_order_makes_the_batches() -> None:
    assert in_arrival_order(np.array([30, 10, 20, 10]), np.array([True, True, False, True])).tolist() == [1, 3, 0]


# --- form


def test_the_summary_is_plain_finite_json() -> None:
    record = replace(by_hand(), complete=False)
    summary = summarise(record, scenario(), [Note("unsorted", "arrivals were sorted")])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["schema_version"] == 4
    assert (summary["scenario"], summary["seed"], summary["partial"]) == ("synthetic", 7, True)
    assert summary["warnings"][0] == {"code": "unsorted", "text": "arrivals were sorted"}


def test_the_same_record_gives_the_same_bytes() -> None:
    texts = {json.dumps(summarise(queue_record(np.random.default_rng(34), 500, 0.8), scenario())) for _ in range(2)}
    assert len(texts) == 1


def test_numbers_have_nine_digits() -> None:
    assert number(1 / 3) == 0.333333333
    assert number(123456.7890123) == 123456.789
