"""Every shipped scenario runs, worked examples have their documented results, and public traces run completely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import simulator
from cost_models import BatchShape, load_gpu, load_model
from simulator.common.shipped import find_scenario, scenario_names
from simulator.results.integrity import check
from simulator.scenario import load_scenario
from simulator.study.dry_run import dry_run
from simulator.study.prepare import prepare
from simulator.study.run import execute
from tests.costs import build_roofline


def shortened(name: str) -> tuple[str, ...]:
    """Return overrides with fewer requests for slow scenarios: traces, and designs that speculate."""
    if "bench" in name:
        return ("workload.limit=300",)
    loads = {"designs/colocated_eagle": 300, "designs/colocated_draft_model": 300, "designs/reasoning_mtp": 40}
    return (f"workload.requests={loads[name]}",) if name in loads else ()


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario_runs(name: str) -> None:
    finished = simulator.run(name, shortened(name))
    check(finished.record)
    counts = finished.summary["requests"]
    assert counts["completed"] == counts["submitted"] > 0


def test_the_worked_example_of_a_70b_model_in_fp8_on_two_gpus() -> None:
    lengths = ("workload.prompt_tokens=3900", "workload.output_tokens=200")  # 4,000 in the middle of their life
    report = dry_run(prepare(load_scenario(find_scenario("llama_70b_fp8"), lengths)))
    (pool,) = report["pools"].values()
    memory = pool["memory_per_gpu"]
    assert 2 * memory["kv_bytes_per_token"] == 160 * 1024
    before_activations = memory["budget_bytes"] - memory["weight_bytes"]
    assert before_activations // memory["kv_bytes_per_token"] == pytest.approx(513_000, rel=0.001)
    decode = pool["decode"]
    assert (decode["batch"], decode["context"]) == (125, 4000)
    assert decode["bound_ms"] == pytest.approx(22.8, abs=0.05)
    assert decode["bound_tokens_per_s"] == pytest.approx(5490, abs=5)
    assert decode["bound_ms"] < decode["estimate_ms"] < 1.3 * decode["bound_ms"]


def test_the_worked_example_as_a_run() -> None:
    """While all 125 decode, at contexts of 3,300 to 4,000, steps lie above their bound and within 1.3 times of it."""
    finished = simulator.run("llama_70b_fp8")
    steps = finished.record.steps
    full = (steps.decodes == 125) & (steps.prefill_tokens == 0)
    assert full.sum() > 500
    model, gpu = load_model("llama-3.1-70b"), load_gpu("h100-sxm")
    roofline = build_roofline(model, gpu, tensor_parallel=2, weights="fp8", kv_cache="fp8", calibration="none")
    last = np.flatnonzero(full)[-1]
    # In the last step with all requests, those admitted first have 3,999 tokens and the others somewhat fewer.
    bound_ms = roofline.bound_ns(BatchShape(125, 125 * 4000, 0, (), 0, 125)) / 1e6
    took_ms = (steps.end_ns[last] - steps.start_ns[last]) / 1e6
    assert bound_ms == pytest.approx(22.8, abs=0.05)
    assert 0.95 * bound_ms < took_ms < 1.3 * bound_ms
    assert finished.summary["engine"]["preemptions"] == 0


@pytest.mark.parametrize(
    ("name", "rows", "engine"), [("code", 8_819, "lazy"), ("conv", 19_366, "lazy"), ("code", 8_819, "explicit")]
)
def test_the_azure_traces_run_end_to_end(shared: Path, name: str, rows: int, engine: str) -> None:
    trace = shared / "traces" / "azure" / f"AzureLLMInferenceTrace_{name}.csv"
    scenario = load_scenario(find_scenario("quickstart"), (f"run.engine={engine}",), trace=str(trace))
    finished = execute(prepare(scenario))
    check(finished.record)
    counts, requests = finished.summary["requests"], finished.record.requests
    assert counts["completed"] + counts["rejected"] == rows == len(requests.status)
    completed = requests.finish_ns >= 0
    assert np.array_equal(requests.emitted_tokens[completed], requests.output_tokens[completed])
    assert requests.emitted_tokens[~completed].sum() == 0
