"""Replications: pooled results, the same bytes for any number of processes, and their folders."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.cli import main
from simulator.errors import InputError
from simulator.scenario import load_scenario
from simulator.study.replications import replicate
from simulator.study.seeds import SeedOptions

SCENARIO = """\
name: several
model: llama-3.1-8b
seed: 3
workload:
  arrivals: {process: poisson, rate: 20}
  requests: 300
  classes:
    - {name: chat, weight: 0.7, prompt_tokens: 50, output_tokens: {distribution: geometric, mean: 10}}
    - {name: batch, weight: 0.3, prompt_tokens: 200, output_tokens: 4}
deployment:
  pools:
    main:
      gpu: h100-sxm
      scheduler: {version: none, max_num_seqs: 16}
      cost_model: {kind: linear, base: 5ms, per_prefill_token: 20us}
slo: {ttft: {p95: 1s}, itl: {p99: 1us}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "several.yaml"
    file.write_text(SCENARIO)
    return file


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["run", *map(str, arguments), "--json"]) == 0
    return capsys.readouterr().out


def test_percentiles_are_of_all_requests_and_gaps_together(path: Path, tmp_path: Path) -> None:
    summary = replicate(load_scenario(path), SeedOptions(4, out=tmp_path / "out")).summary
    runs = [simulator.load_results(tmp_path / "out" / f"seed-{seed}") for seed in (3, 4, 5, 6)]
    assert (summary["replications"], summary["seeds"]) == (4, [3, 4, 5, 6])
    for metric in ("ttft_ms", "e2e_ms", "queue_ms"):
        values = np.concatenate([run.requests[metric] for run in runs])
        for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert summary["latency"][metric][name] == pytest.approx(np.quantile(values, p), rel=1e-6)
        assert summary["latency"][metric]["mean"] == pytest.approx(values.mean(), rel=1e-6)
    assert summary["latency"]["itl_ms"]["count"] == sum(run.summary["latency"]["itl_ms"]["count"] for run in runs)
    assert [one["latency"]["ttft_ms"] for one in summary["runs"]] == [run.summary["latency"]["ttft_ms"] for run in runs]
    chat = np.concatenate([run.requests.loc[run.requests["class_name"] == "chat", "ttft_ms"] for run in runs])
    assert summary["by_class"]["chat"]["ttft_ms"]["p95"] == pytest.approx(np.quantile(chat, 0.95), rel=1e-6)
    rate = summary["rates"]["requests_per_s"]
    assert rate["mean"] == pytest.approx(np.mean(rate["values"]))
    assert rate["ci95"][0] < rate["mean"] < rate["ci95"][1]
    assert json.loads((tmp_path / "out" / "replications.json").read_text()) == summary


def test_objectives_are_judged_by_the_pooled_values(path: Path) -> None:
    found = replicate(load_scenario(path), SeedOptions(3)).summary
    assert [each["met"] for each in found["slo"]["objectives"]] == [True, False]
    assert found["slo"]["objectives"][0]["measured_ms"] == found["latency"]["ttft_ms"]["p95"]


def test_the_number_of_processes_does_not_matter(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, path, "--seeds", 3, "--jobs", 1) == printed(capsys, path, "--seeds", 3, "--jobs", 2)


def test_one_of_them_is_the_run_of_its_seed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several: dict[str, Any] = json.loads(printed(capsys, path, "--seeds", 2, "--jobs", 1))
    alone = json.loads(printed(capsys, path, "--seed", 4))
    assert several["runs"][1]["latency"] == alone["latency"]


def test_the_table_and_the_exit_code(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(path), "--seeds", "3", "--jobs", "1", "--fail-on-slo"]) == 1
    text = capsys.readouterr()
    assert "several, 3 runs, seeds 3 to 5" in text.out
    assert "seed 5" in text.out
    assert "SLO missed: ITL p99" in text.err
    assert max(map(len, text.out.splitlines())) <= 80


def test_the_engine_and_the_cost_of_the_runs_are_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    priced = ["--set", "cost.usd_per_gpu_hour=2.5", "--set", "slo={ttft: 100ms}", "--seeds", 3]
    summary = json.loads(printed(capsys, path, *priced))
    single = json.loads(printed(capsys, path, *priced[:4]))
    assert summary["schedulers"] == single["schedulers"]
    for name in ("usd", "usd_per_1k_tokens", "usd_per_million_output_tokens"):
        cost = summary["cost"][name]
        assert cost["values"][0] == single["cost"][name] and len(cost["values"]) == 3
        assert (
            cost["mean"] == pytest.approx(np.mean(cost["values"])) and cost["ci95"][0] < cost["mean"] < cost["ci95"][1]
        )
    assert main(["run", str(path), *map(str, priced)]) == 0
    text = capsys.readouterr().out
    assert "scheduler: vLLM rules, without a version's defaults, synchronous" in text
    for row in ("goodput, requests/s", "USD per 1k tokens", "USD per 1M output tokens"):
        assert re.search(rf"^{row} +[0-9.e-]+ +[0-9.e-]+\.\.[0-9.e-]+ ", text, re.MULTILINE)


def test_their_repr_has_figures(path: Path) -> None:
    one = repr(replicate(load_scenario(path), SeedOptions(1)))
    assert "several, one run, seed 3: 300 of 300 requests completed; TTFT p50 " in one and "; ITL mean " in one
    assert "several, 2 runs, seeds 3 to 4: 600 of 600 requests completed; TTFT " in repr(
        replicate(load_scenario(path), SeedOptions(2))
    )


def test_a_trace_is_the_same_under_every_seed(path: Path, tmp_path: Path) -> None:
    rows = "".join(f"{index / 10},50,5\n" for index in range(60))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    found = simulator.replicate(path, seeds=4, trace=tmp_path / "t.csv", jobs=1).summary
    assert found["replications"] == 1
    assert found["warnings"][0]["code"] == "requests_fixed"
    assert found["intervals"]["method"] == "none"
    assert set(found["latency"]["ttft_ms"]["ci95_reason"].values()) == {"few_runs"}


def test_mistakes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (("--seeds", "0"), "--seeds: expected a whole number of at least 1, found '0'"),
        (("--seeds", "2", "--dry-run"), "--dry-run has no meaning with --seeds"),
        (("--seeds", "2", "--steps", str(tmp_path / "s")), "--steps has no meaning with --seeds"),
    ):
        assert main(["run", str(path), *arguments]) == 2
        assert text in capsys.readouterr().err
    with pytest.raises(InputError, match="seeds: expected a whole number of at least 1, found 0"):
        simulator.replicate(path, seeds=0)


def test_a_folder_of_other_results_is_not_replaced(path: Path, tmp_path: Path) -> None:
    scenario, out = load_scenario(path), tmp_path / "out"
    replicate(scenario, SeedOptions(3, out=out))
    replicate(scenario, SeedOptions(3, out=out))
    with pytest.raises(InputError, match="holds results of seed-5, which is not among these seeds"):
        replicate(scenario, SeedOptions(2, out=out))
    replicate(scenario, SeedOptions(2, out=out, force=True))
    assert sorted(entry.name for entry in out.iterdir()) == ["replications.json", "seed-3", "seed-4"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt, which is not part of replications"):
        replicate(scenario, SeedOptions(2, out=out, force=True))
