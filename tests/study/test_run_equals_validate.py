"""`servesim run` and `servesim validate` say the same of one workload on one server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.cli import main
from simulator.results.record import RunRecord
from tests.helpers import bench_serve_result

#: Nothing is said of the engine but what must be: all else is the default of both commands.
SCENARIO = """
name: workload
model: {model}
workload:
  arrivals: {{process: poisson, rate: {rate}}}
  requests: 400
  prompt_tokens: {{distribution: lognormal, mean: 700, cv: 0.8, max: 4096}}
  output_tokens: {{distribution: lognormal, mean: 90, cv: 0.8, max: 1024}}
  max_concurrency: {limit}
deployment: {{pools: {{main: {{gpu: {gpu}}}}}}}
"""


def recorded(path: Path) -> RunRecord:
    return simulator.run(path).record


def as_trace(record: RunRecord, path: Path) -> Path:
    """Return the requests of a run, as the client sent them."""
    requests = record.requests
    columns = zip(
        requests.client_ns.tolist(), requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), strict=True
    )
    lines = [f"{begin / 1e9:.9f},{prompt},{output}" for begin, prompt, output in columns]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n", encoding="utf-8")
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return the JSON output of a command."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("model", "gpu", "rate", "limit"),
    [
        ("llama-3.1-8b", "h100-sxm", 10, "null"),
        ("llama-3.1-8b", "a100-sxm-80gb", 12, "null"),
        ("llama-3.1-8b", "l40s", 4, "null"),
        ("llama-3.1-8b", "h100-sxm", 10, "6"),
    ],
)
def test_run_and_validate_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, gpu: str, rate: int, limit: str
) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(model=model, gpu=gpu, rate=rate, limit=limit), encoding="utf-8")
    record = recorded(scenario)
    bench = tmp_path / "result.json"
    bench.write_text(json.dumps(bench_serve_result(record, model, rate)), encoding="utf-8")
    trace = as_trace(record, tmp_path / "requests.csv")

    run = said(capsys, "run", str(scenario), "--trace", str(trace))["latency"]
    (row,) = said(capsys, "validate", str(bench), "--gpu", gpu, "--seeds", "1", "--jobs", "1")["rows"]
    assert row["left_out"] == ""
    for metric in ("ttft", "tpot", "itl", "e2e"):
        for statistic in ("mean", "p50", "p90", "p99"):
            predicted = row["metrics"][f"{metric}_{statistic}_ms"]["predicted"]
            assert predicted == pytest.approx(run[f"{metric}_ms"][statistic], rel=0.005), (metric, statistic)


def test_a_closed_loop_without_its_requests_is_the_scenario_of_the_same_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal lengths in a closed loop: nothing is drawn, so that totals and means describe the whole load."""
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "name: clients\nmodel: llama-3.1-8b\n"
        "workload: {arrivals: {process: all_at_once}, requests: 240, prompt_tokens: 600, output_tokens: 80, "
        "max_concurrency: 16}\n"
        "deployment: {pools: {main: {gpu: h100-sxm}}}\n",
        encoding="utf-8",
    )
    run = said(capsys, "run", str(scenario))["latency"]
    result = {
        "model_id": "llama-3.1-8b",
        "completed": 240,
        "total_input_tokens": 240 * 600,
        "total_output_tokens": 240 * 80,
        "request_rate": "inf",
        "max_concurrency": 16,
        "mean_ttft_ms": run["ttft_ms"]["mean"],
        "mean_tpot_ms": run["tpot_ms"]["mean"],
        "median_itl_ms": run["itl_ms"]["p50"],
        "p99_e2el_ms": run["e2e_ms"]["p99"],
    }
    bench = tmp_path / "result.json"
    bench.write_text(json.dumps(result), encoding="utf-8")
    (row,) = said(capsys, "validate", str(bench), "--gpu", "h100-sxm", "--jobs", "1")["rows"]
    for name, metric in row["metrics"].items():
        assert abs(metric["error_percent"]) < 0.5, name
