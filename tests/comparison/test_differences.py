"""Comparing what differs in more than the deployment: where allowed, it is stated, and not paired by request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.cli import main
from simulator.results.paired import Estimate, unpaired

BASE: dict[str, Any] = {
    "name": "base",
    "model": "llama-3.1-8b",
    "workload": {
        "arrivals": {"process": "poisson", "rate": 5},
        "requests": 60,
        "prompt_tokens": {"distribution": "geometric", "mean": 200},
        "output_tokens": {"distribution": "geometric", "mean": 20},
    },
    "deployment": {"pools": {"main": {"gpu": "h100-sxm"}}},
}
FP8 = BASE | {"name": "fp8", "model": {"name": "llama-3.1-8b", "weights": "fp8"}}
SMALL = BASE | {"name": "small", "model": "llama-3.2-1b"}
BUSY = BASE | {"name": "busy", "workload": BASE["workload"] | {"arrivals": {"process": "poisson", "rate": 10}}}


def entry_of(document: dict[str, Any], metric: str) -> dict[str, Any]:
    return next(entry for entry in document["paired"] if entry["metric"] == metric)


def test_formats_differ_and_requests_stay_paired() -> None:
    comparison = simulator.compare([BASE, FP8], seeds=3, allow_different=["weights"])
    document = comparison.document
    assert document["different"] == {
        "what": ["weights"],
        "keys": {"model.weights": {"base": "auto (bf16)", "fp8": "fp8"}},
        "requests": None,
    }
    assert document["warnings"][0]["code"] == "different"
    assert "do not have the same weights:" in document["warnings"][0]["text"]
    assert "paired" not in document["warnings"][0]["text"]
    entry = entry_of(document, "latency.itl_ms.mean")
    assert (entry["method"], entry["count"]) == ("seeds", 3)
    assert entry["ci95"][1] < 0
    assert "model.weights: auto (bf16) in base, fp8 in fp8" in comparison._repr_html_()
    assert comparison.latency_figure().get_suptitle().endswith("; not of the same weights")
    one = simulator.compare([BASE, FP8], seeds=1, allow_different="weights").document
    assert entry_of(one, "latency.ttft_ms.mean")["method"] == "requests"


def test_a_pool_may_have_other_formats_too() -> None:
    pool = {"gpu": "h100-sxm", "model": {"name": "llama-3.1-8b", "kv_cache": "fp8"}}
    other = BASE | {"name": "other", "deployment": {"pools": {"main": pool}}}
    with pytest.raises(simulator.InputError, match="allow_different and model, weights or kv_cache"):
        simulator.compare([BASE, other], seeds=1, allow_different=["weights", "model"])
    document = simulator.compare([BASE, other], seeds=1, allow_different=["kv_cache"]).document
    assert document["different"]["keys"] == {
        "models of pools": {
            "base": "llama-3.1-8b (weights auto, kv_cache auto)",
            "other": "llama-3.1-8b (weights auto, kv_cache fp8)",
        }
    }


def test_other_loads_are_differences_over_seeds() -> None:
    document = simulator.compare([BASE, BUSY, SMALL], seeds=3, allow_different=["workload", "model"]).document
    found = document["different"]
    assert found["what"] == ["model", "workload"]
    assert found["keys"]["workload.arrivals.rate"] == {"base": 5.0, "busy": 10.0, "small": 5.0}
    assert found["keys"]["model.name"]["small"] == "llama-3.2-1b"
    assert found["requests"]["busy"]["requests"] == 60
    rates = [found["requests"][name]["rate_per_s"] for name in ("busy", "base")]
    assert rates[0] == pytest.approx(2 * rates[1], rel=1e-3)
    assert "not paired by request" in document["warnings"][0]["text"]
    means = [document["metrics"][name]["latency.ttft_ms.mean"]["values"] for name in ("busy", "base")]
    entry = entry_of(document, "latency.ttft_ms.mean")
    assert entry["difference"] == pytest.approx(np.mean(means[0]) - np.mean(means[1]))
    assert (entry["method"], entry["count"]) == ("seeds", 3)


def test_runs_of_other_traces_have_the_interval_of_both(tmp_path: Path) -> None:
    for name, gap in (("a", 0.5), ("b", 0.1)):
        rows = "".join(f"{i * gap:.3f},{100 + 37 * i % 200},{5 + i % 7}\n" for i in range(120))
        (tmp_path / f"{name}.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    designs = [BASE | {"name": name, "workload": {"trace": str(tmp_path / f"{name}.csv")}} for name in ("a", "b")]
    comparison = simulator.compare(designs, allow_different=["workload"])
    document = comparison.document
    assert len(document["seeds"]) == 1
    entry = entry_of(document, "latency.ttft_ms.mean")
    assert (entry["method"], entry["count"]) == ("unpaired", 240)
    blocks = [document["designs"][name]["latency"]["ttft_ms"] for name in ("b", "a")]
    half = np.hypot(blocks[0]["mean"] - blocks[0]["ci95"]["mean"][0], blocks[1]["ci95"]["mean"][1] - blocks[1]["mean"])
    assert entry["ci95"][0] == pytest.approx(entry["difference"] - half, rel=1e-6)
    rates = entry_of(document, "throughput.requests_per_s")
    assert (rates["method"], rates["ci95"]) == ("none", None)


def test_a_trace_beside_a_drawn_workload_varies_by_the_seeds_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "0.5,100,5\n" * 50)
    traced = BASE | {"name": "traced", "workload": {"trace": str(tmp_path / "a.csv")}}
    document = simulator.compare([traced, BASE], seeds=3, allow_different=["workload"]).document
    assert document["seeds"] == [0, 1, 2]
    entry = entry_of(document, "latency.ttft_ms.mean")
    assert (entry["method"], entry["count"]) == ("seeds", 3)


def test_the_interval_of_two_independent_means_covers() -> None:
    """Of two samples, the unpaired interval from their own covers the difference of the means in about 95%."""
    from simulator.results.statistics import Distribution

    generator, covered = np.random.default_rng(12), 0
    for _ in range(400):
        estimates = []
        for mean in (10.0, 12.0):
            sample = Distribution.of_series(generator.exponential(mean, 400))
            bounds = sample.mean_interval()
            assert bounds is not None
            estimates.append(Estimate(sample.mean(), *bounds, sample.count))
        found = unpaired(*estimates)
        assert found.interval is not None
        covered += found.interval[0] <= -2.0 <= found.interval[1]
    assert 0.92 <= covered / 400 <= 0.985


def test_equal_requests_are_paired_even_if_others_were_allowed() -> None:
    same = BASE | {"name": "same"}
    document = simulator.compare([BASE, same], seeds=1, allow_different=["workload"]).document
    assert "different" not in document
    entry = entry_of(document, "latency.ttft_ms.mean")
    assert (entry["method"], entry["difference"]) == ("requests", 0)


def test_speculation_is_no_speed_up_under_another_load() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"law": "iid", "alpha": 0.5}}
    drafting = BUSY | {"deployment": {"pools": {"main": {"gpu": "h100-sxm", "speculation": drafts}}}}
    document = simulator.compare([BASE, drafting], seeds=1, allow_different=["workload"]).document
    assert "speed_up" not in document


@pytest.mark.parametrize(
    ("other", "allowed", "expected"),
    [
        (FP8, [], r"model.weights: fp8 in fp8, auto in base; .* or allow it with allow_different=\[.weights.\]$"),
        (SMALL, ["weights"], r"model.name: llama-3.2-1b in small, .*allow_different=\[.model.\]$"),
        (BUSY, ["model"], r"workload.arrivals.rate: 10.0 in busy, 5.0 in base.*allow_different=\[.workload.\]$"),
        (
            BASE | {"name": "x", "seed": 3},
            ["workload"],
            r"seed: 3 in x, 0 in base.*overrides=\{\"seed\": \.\.\.\} for all$",
        ),
        (BASE | {"name": "x", "slo": {"ttft": "1s"}}, ["workload"], r"slo\.ttft\S*: 1s in x, not given in base"),
        (FP8, ["wieghts"], r"^allow_different wieghts: is not known; did you mean weights\?$"),
    ],
)
def test_nothing_else_is_allowed(other: dict[str, Any], allowed: list[str], expected: str) -> None:
    with pytest.raises(simulator.InputError, match=expected):
        simulator.compare([BASE, other], seeds=1, allow_different=allowed)


def test_the_command_says_above_the_tables_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for scenario in (BASE, FP8, BUSY):
        (tmp_path / f"{scenario['name']}.yaml").write_text(json.dumps(scenario))
    command = ["compare", "base.yaml", "fp8.yaml", "busy.yaml", "--seeds", "2", "--jobs", "1"]
    assert main([*command, "--allow-different", "weights,workload"]) == 0
    text = capsys.readouterr().out
    above = text[: text.index("TTFT mean")]
    assert "model.weights: auto (bf16) in base, fp8 in fp8, auto (bf16) in busy" in above
    assert "workload.arrivals.rate: 5.0 in base, 5.0 in fp8, 10.0 in busy" in above
    assert "requests of busy: 60," in above
    assert "differences under the same seed" in text
    assert main([*command, "--allow-different", "weights"]) == 2
    assert "--allow-different workload" in capsys.readouterr().err
