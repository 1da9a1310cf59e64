"""Service level objectives: verdicts, attainment and their texts."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.results.metrics import summarise
from simulator.results.record import RunRecord
from simulator.results.segments import token_times
from simulator.results.table import print_summary
from tests.unit.results.synthetic import MS, SECOND, replay, scenario


def record(seed: int = 5) -> RunRecord:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.integers(0, 3 * SECOND, 200))
    return replay(arrival, rng.integers(1, 500, 200), rng.integers(1, 40, 200), preempt_at=frozenset({9, 30}))


def slo_of(run: RunRecord, slo: str) -> dict[str, Any]:
    section: dict[str, Any] = summarise(run, scenario(f"slo={slo}"))["slo"]
    return section


def test_every_metric_and_statistic_can_have_a_limit() -> None:
    run = record()
    latency = summarise(run, scenario())["latency"]
    for metric in ("ttft", "itl", "tpot", "e2e", "queue", "stall"):
        for statistic in ("mean", "p50", "p90", "p95", "p99", "max"):
            value = latency[f"{metric}_ms"][statistic]
            for limit, met in ((value * 1.001 + 0.001, True), (value * 0.999, False)):
                if limit * MS < 1:
                    continue
                found = slo_of(run, f"{{{metric}: {{{statistic}: {int(limit * MS)}ns}}}}")
                (objective,) = found["objectives"]
                assert found["met"] is objective["met"] is met, (metric, statistic)
                assert objective["measured_ms"] == value
                assert (objective["metric"], objective["statistic"]) == (f"{metric}_ms", statistic)


def test_attainment_of_itl_counts_every_gap() -> None:
    run = record()
    gaps = np.concatenate([np.diff(token_times(run, index)) for index in range(200)])
    for limit_ns in (int(np.quantile(gaps, p)) for p in (0.1, 0.5, 0.97)):
        (objective,) = slo_of(run, f"{{itl: {{p99: {limit_ns}ns}}}}")["objectives"]
        assert objective["attainment"] == pytest.approx(np.mean(gaps <= limit_ns), rel=1e-8)


def test_attainment_of_requests_and_of_limits_for_each() -> None:
    run = record()
    ttft = run.requests.first_token_ns - run.requests.arrival_ns
    limit_ns = int(np.sort(ttft)[150])  # a value that occurs counts as within
    share = float(np.mean(ttft <= limit_ns))
    found = slo_of(run, f"{{ttft: {{limit: {limit_ns}ns, p50: {limit_ns}ns}}}}")
    assert found["objectives"][0]["attainment"] == pytest.approx(share)
    assert found["by_request"] == [
        {"metric": "ttft_ms", "limit_ms": pytest.approx(limit_ns / 1e6), "attainment": pytest.approx(share)}
    ]
    bare = slo_of(run, f"{{ttft: {limit_ns}ns}}")
    assert (bare["met"], "objectives" in bare) == (None, False)


def test_goodput_is_of_limits_for_each_request_alone() -> None:
    assert "goodput_per_s" not in summarise(record(), scenario("slo={ttft: {p95: 1s}}"))["throughput"]
    with_limit = summarise(record(), scenario("slo={ttft: {p95: 1s, limit: 1h}}"))["throughput"]
    assert with_limit["goodput_per_s"] == with_limit["requests_per_s"]


def test_what_was_not_measured_is_not_met() -> None:
    one_token = replay([0, 0], [10, 10], [1, 1])
    found = slo_of(one_token, "{itl: {p99: 50ms}, ttft: {p95: 1h}}")
    assert found["met"] is False
    assert [(each["measured_ms"], each["met"]) for each in found["objectives"]][1] == (None, False)


def test_without_speculation_an_event_is_a_token() -> None:
    by_event, by_token = (slo_of(record(), f"{{{name}: {{p99: 1s}}}}") for name in ("itl_event", "itl"))
    assert by_event == by_token


def test_the_table_says_what_is_met_and_what_is_missed() -> None:
    def printed(slo: str) -> str:
        stream = io.StringIO()
        print_summary(summarise(record(), scenario(f"slo={slo}")), stream)
        return stream.getvalue()

    text = printed("{ttft: {p95: 1ms, limit: 1s}, itl: {p99: 1h}}")
    assert "SLO missed: TTFT p95 " in " ".join(text.split())
    assert "ms > 1 ms (1 of 2 met)" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "SLO met: all 2 objectives" in printed("{ttft: {p95: 1h}, itl: {p99: 1h}}")
    assert "SLO met" not in printed("{ttft: 1h}")


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ("{}", "slo: needs at least one metric, such as ttft: {p95: 1s}"),
        ("{ttft: {}}", "slo.ttft: needs at least one of limit, mean, p50, p90, p95, p99, max"),
        ("{itl: 50ms}", "slo.itl: a limit for each request is for ttft, tpot, e2e; give one for a statistic"),
        ("{ttft: {p98: 1s}}", "slo.ttft.p98: unknown key"),
        ("{ttft: {p95: 1}}", "slo.ttft.p95: a duration needs a unit"),
        ("{ttft_p95: 1s}", "slo.ttft_p95: "),
    ],
)
def test_mistakes(slo: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        scenario(f"slo={slo}")
    assert message in str(error.value)
