"""`servesim run`, as a user types it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.cli import main
from simulator.common.progress import Report
from simulator.results.store import write_results
from tests.conftest import ROOT

SCENARIO = """\
name: small
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: 20}
  requests: 40
  prompt_tokens: {distribution: uniform, min: 50, max: 400}
  output_tokens: 20
deployment:
  pools:
    main: {gpu: h100-sxm, scheduler: {version: none}}
cost: {usd_per_gpu_hour: 2}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    return file


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["run", *map(str, arguments), "--json"]) == 0
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def capsys_codes(capsys: pytest.CaptureFixture[str], *arguments: object) -> set[str]:
    return {warning["code"] for warning in run_json(capsys, *arguments)["warnings"]}


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the only line that a bad command prints."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else -1
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_json_has_what_the_documentation_promises(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run_json(capsys, path)
    assert (summary["schema_version"], summary["scenario"], summary["seed"]) == (4, "small", 0)
    counts = summary["requests"]
    outcomes = ("completed", "rejected", "expired", "cancelled", "failed", "in_flight")
    assert counts["submitted"] == sum(counts[outcome] for outcome in outcomes) == counts["completed"] == 40
    for metric in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms"):
        block = summary["latency"][metric]
        assert {"mean", "std", "p50", "p90", "p95", "p99", "max", "ci95"} <= set(block)
        assert block["p50"] <= block["p90"] <= block["p95"] <= block["p99"] <= block["max"]
    assert summary["cost"]["usd"] == pytest.approx(summary["duration_s"] / 3600 * 2)
    assert {"steps", "mean_batch", "busy_share", "preemptions", "recomputed_tokens"} <= set(summary["engine"])
    assert set(summary["kv"]) == {"blocks", "peak_use", "mean_use", "wasted_share"}
    assert "few_samples" in {warning["code"] for warning in summary["warnings"]}


def test_the_same_scenario_and_seed_give_the_same_bytes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, files = [], []
    for name in ("a", "b"):
        out = path.parent / name
        assert main(["run", str(path), "--seed", "3", "--json", "--out", str(out)]) == 0
        texts.append(capsys.readouterr().out)
        files.append({file.name: file.read_bytes() for file in sorted(out.iterdir())})
    assert texts[0] == texts[1]
    assert files[0] == files[1]
    names = ("requests", "segments", "events", "preemptions", "steps", "transfers", "offload")
    columns = {f"{name}.npz" for name in (*names, "drafts", "draft_positions", "replica_states")}
    assert set(files[0]) == {"summary.json"} | columns
    assert run_json(capsys, path, "--seed", 4) != json.loads(texts[0])


def test_results_are_read_back(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run_json(capsys, path, "--out", path.parent / "out")
    results = simulator.load_results(path.parent / "out")
    assert results.summary["latency"] == summary["latency"]
    assert np.percentile(results.requests["ttft_ms"], 95) == pytest.approx(summary["latency"]["ttft_ms"]["p95"])
    assert len(results.steps) == summary["engine"]["steps"]


def test_the_table_names_the_metrics(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(path)]) == 0
    out = capsys.readouterr().out
    for word in ("TTFT", "ITL", "TPOT", "E2E", "p50", "p99", "few_samples"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_trace_of_ones_own(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = path.parent / "mine.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,class\n2,100,3,a\n0.5,200,4,b\n0.5,10,5,a\n")
    summary = run_json(capsys, path, "--trace", trace)
    assert summary["requests"]["completed"] == 3
    assert set(summary["by_class"]) == {"a", "b"}
    assert [w["code"] for w in summary["warnings"]].count("arrivals_sorted") == 1


def test_requests_that_cannot_be_served_are_refused_and_the_others_served(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = path.parent / "large.csv"
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens\n0,200000,1\n0,1000,10\n0,131062,10\n0,131063,10\n0,6000,1\n"
    )
    summary = run_json(capsys, path, "--trace", trace)
    assert summary["requests"]["rejected_reasons"] == {"context_limit": 2}
    assert summary["requests"]["completed"] == 3
    small = run_json(capsys, path, "--trace", trace, "--set", "deployment.pools.main.memory.kv_blocks=100")
    assert small["requests"]["rejected_reasons"] == {"context_limit": 2, "kv_pool": 2}
    texts = [warning["text"] for warning in small["warnings"] if warning["code"] == "requests_refused"]
    assert texts[0].startswith("2 of 5 requests refused: prompt and max_tokens exceed the context limit of 131072")
    assert texts[1].startswith("2 of 5 requests refused: their KV exceeds the whole pool of 1600 tokens")


def test_a_run_that_serves_nothing_is_no_result(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.parent / "none"
    assert main(["run", str(path), "--set", "workload.prompt_tokens=200000", "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("servesim: no request can be served: 40 of 40 requests refused: prompt and max_")
    assert not out.exists()


def test_a_missed_objective_fails_the_run_if_asked_to(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strict, loose = ("--set", "slo={ttft: {p95: 1us}}"), ("--set", "slo={ttft: {p95: 1h}}")
    assert main(["run", str(path), *strict]) == 0
    assert "SLO missed: TTFT p95" in capsys.readouterr().out
    assert main(["run", str(path), *strict, "--fail-on-slo", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["slo"]["met"] is False
    assert printed.err.startswith("servesim: SLO missed: TTFT p95 ")
    assert main(["run", str(path), *loose, "--fail-on-slo"]) == 0
    capsys.readouterr()
    assert main(["run", str(path), "--set", "slo={ttft: 1h}", "--fail-on-slo"]) == 2
    assert "--fail-on-slo: the scenario has no objective for a statistic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("llama-3.1-8b", "llama-3.1-8", "'llama-3.1-8'; did you mean llama-3.1-8b"),
        ("h100-sxm", "h101", "deployment.pools.main.gpu: unknown GPU 'h101'"),
        ("llama-3.1-8b", "llama-3.1-405b", "does not fit"),
        ("requests: 40", "requests: 4e1", "small.yaml:5:13: workload.requests: expected an integer, found text '4e1'"),
        ("gpu: h100-sxm", "gpu: h100-sxm, tensor_parallel: 3", "3"),
        ("version: none", "version: none, enable_chunked_prefill: false", "without chunked prefill"),
        ("version: none", "policy: static", "set max_model_len to 8192 or less"),
        ("version: none", "policy: orca", "set max_model_len to 8192 or less"),
    ],
)
def test_mistakes_in_a_scenario(
    path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, expected: str
) -> None:
    path.write_text(SCENARIO.replace(old, new))
    assert expected in error_of(capsys, "run", path, "--out", path.parent / "out")
    assert not (path.parent / "out").exists()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,x,1\n", "t.csv:3: prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,-5,1\n", "t.csv:2: prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,0\n", "t.csv:2: output_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,5,1\n", "t.csv:2: arrival_s"),
        ("arrival_s,prompt_tokens,output_tokens\n0,99999999999999999999,1\n", "t.csv:2: prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5\n", "t.csv:2:"),
        ("arrival_s,prompt_tokens,output_tokens\n", "t.csv:"),
        ("", "t.csv:"),
        ("when,how_much\n1,2\n", "t.csv:1:"),
    ],
)
def test_mistakes_in_a_trace(path: Path, capsys: pytest.CaptureFixture[str], content: str, expected: str) -> None:
    trace = path.parent / "t.csv"
    trace.write_text(content)
    assert expected in error_of(capsys, "run", path, "--trace", trace, "--out", path.parent / "out")
    assert not (path.parent / "out").exists()


def test_mistakes_on_the_command_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file, and no shipped scenario has that name; did you mean quickstart?" in error_of(
        capsys, "run", "quickstrat"
    )
    assert "no such file" in error_of(capsys, "run", path, "--trace", "none.csv")
    assert "--trace-format has no meaning without --trace" in error_of(capsys, "run", path, "--trace-format", "azure")
    assert "seed: expected an integer" in error_of(capsys, "run", path, "--seed", "x")
    assert "unrecognized arguments: --jsn" in error_of(capsys, "run", path, "--jsn")
    assert "invalid choice: 'gpu'" in error_of(capsys, "list", "gpu")
    assert "--out has no meaning with --dry-run" in error_of(
        capsys, "run", path, "--dry-run", "--out", path.parent / "x"
    )
    full = path.parent / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("do not lose me")
    assert "full" in error_of(capsys, "run", path, "--out", full)
    assert "exists and is not an empty folder" in error_of(capsys, "run", path, "--steps", full)
    assert "which run.engine: lazy does not compute" in error_of(
        capsys, "run", path, "--steps", path.parent / "s", "--set", "run.engine=lazy"
    )
    both = ("--out", path.parent / "both", "--steps", path.parent / "both" / "steps")
    assert "give two folders, neither of them inside the other" in error_of(capsys, "run", path, *both)
    assert (full / "thesis.tex").read_text() == "do not lose me"


def test_dry_run_says_whether_it_fits(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, path, "--dry-run")
    (pool,) = report["pools"].values()
    memory = pool["memory_per_gpu"]
    assert memory["kv_bytes"] == memory["budget_bytes"] - memory["weight_bytes"] - memory["activation_bytes"]
    assert memory["kv_bytes_per_token"] == 131072
    assert pool["kv_per_replica"]["tokens"] == pool["kv_per_replica"]["blocks"] * 16
    assert pool["decode"]["bound_ms"] < pool["decode"]["estimate_ms"]
    assert report["workload"] == {
        "requests": 40,
        "refused": 0,
        "mean_prompt_tokens": pytest.approx(225, abs=50),
        "mean_output_tokens": 20,
    }
    # A request is at the middle of its life when half of its 20 tokens are there.
    middle = report["workload"]["mean_prompt_tokens"] + 10
    assert pool["decode"]["context"] == pytest.approx(middle, abs=1)
    fits = pool["kv_per_replica"]["blocks"] // -(-middle // 16)
    assert pool["concurrency"]["at_half_output"] == pool["decode"]["batch"] == min(256, fits)
    assert main(["run", str(path), "--dry-run"]) == 0
    assert "128 KiB" in capsys.readouterr().out


def test_dry_run_reckons_with_half_an_output_and_with_all_of_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long outputs: 100 tokens of prompt, 1,000 of output, 6,400 tokens of KV."""
    keys = ("workload.prompt_tokens=100", "workload.output_tokens=1000", "deployment.pools.main.memory.kv_blocks=400")
    report = run_json(capsys, path, "--dry-run", *(part for key in keys for part in ("--set", key)))
    pool = report["pools"]["main"]
    assert pool["concurrency"] == {"at_half_output": 400 // 38, "at_full_output": 400 // 69, "limited_by": "kv_memory"}
    assert (pool["decode"]["context"], pool["decode"]["batch"]) == (600, 10)


def test_dry_run_of_a_pipeline(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("--dry-run", "--set", "deployment.pools.main.pipeline_parallel=2")
    whole, staged = run_json(capsys, path, "--dry-run"), run_json(capsys, path, *keys)
    whole, staged = (report["pools"]["main"] for report in (whole, staged))
    assert (staged["gpus"], staged["ranks"]) == (2 * whole["gpus"], 2 * whole["ranks"])
    assert staged["memory_per_gpu"]["kv_bytes_per_token"] == 131072 // 2
    assert staged["kv_per_replica"]["blocks"] > whole["kv_per_replica"]["blocks"]
    assert staged["decode"]["bound_ms"] == pytest.approx(whole["decode"]["bound_ms"])  # the same work, in two places
    assert whole["decode"]["estimate_ms"] < staged["decode"]["estimate_ms"]  # and a send
    assert main(["run", str(path), *keys]) == 0
    assert "KV of a rank" in capsys.readouterr().out


def test_steps_are_recorded(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = path.parent / "steps"
    summary = run_json(capsys, path, "--steps", folder, "--set", "deployment.pools.main.replicas=2")
    lines = [gzip.decompress((folder / str(r) / "steps.jsonl.gz").read_bytes()).splitlines() for r in (0, 1)]
    assert sum(map(len, lines)) == summary["engine"]["steps"]
    assert not (folder / "PARTIAL").exists()
    emitted = sum(sum(json.loads(line)["emitted"].values()) for replica in lines for line in replica)
    assert emitted == 40 * 20
    trace = gzip.decompress((folder / "0" / "trace.jsonl.gz").read_bytes()).splitlines()
    assert len(trace) == 20
    assert json.loads((folder / "0" / "config.json").read_text())["time"] == "recorded"


def test_a_steady_state_that_is_required_and_not_reached(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overload = ["--set", "workload.arrivals.rate=500", "--set", "workload.requests=3000"]
    limits = ["--set", "deployment.pools.main.scheduler.max_num_seqs=8"]
    assert main(["run", str(path), *overload, *limits, "--set", "run.steady_state=required", "--json"]) == 3
    captured = capsys.readouterr()
    assert "unstable_queue" in captured.out
    assert "did not reach a steady state" in captured.err


def test_a_horizon_cuts_the_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = run_json(capsys, path, "--set", "run.horizon=1s")["requests"]
    assert counts["in_flight"] > 0
    assert counts["submitted"] + counts["not_arrived"] == 40
    assert "cut_short" in capsys_codes(capsys, path, "--set", "run.horizon=1s")


def test_a_horizon_beyond_the_end_changes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, path, "--set", "run.horizon=1h") == run_json(capsys, path)


def test_ctrl_c_keeps_what_had_finished_and_marks_it(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def bar_with_an_impatient_watcher(requests: int, shown: bool) -> Iterator[Report]:
        yield lambda now_ns, done: os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("simulator.common.progress.progress_bar", bar_with_an_impatient_watcher)
    out = path.parent / "out"
    assert main(["run", str(path), "--out", str(out), "--json", "--set", "workload.requests=3000"]) == 130
    captured = capsys.readouterr()
    assert captured.err == "servesim: interrupted; the results up to then are kept and marked partial\n"
    summary = json.loads(captured.out)
    assert summary["partial"] is True
    assert summary["requests"]["completed"] == 64  # the bar is updated after each 64 requests
    assert summary["requests"]["in_flight"] > 0
    assert (out / "PARTIAL").exists()
    assert simulator.load_results(out).partial


def test_ctrl_c_while_the_results_are_written_waits_until_they_are(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write_results(*arguments)

    monkeypatch.setattr("simulator.results.store.write_results", impatient)
    out = path.parent / "out"
    assert main(["run", str(path), "--out", str(out), "--json"]) == 130
    assert "results are complete" in capsys.readouterr().err
    assert not simulator.load_results(out).partial


@pytest.mark.parametrize(
    "command",
    ["run {path} --json | head -c 10", "run {path} | true", "run {path} --dry-run | true", "list models | true"],
)
def test_output_into_a_closed_pipe_is_no_error(path: Path, command: str) -> None:
    line = f"set -o pipefail; {sys.executable} -m simulator.cli {command.format(path=path)}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line(path: Path) -> None:
    for arguments in ("run {path} --json", "run {path}", "list models"):
        line = f"{sys.executable} -m simulator.cli {arguments.format(path=path)} >/dev/full"
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (2, "servesim: output: No space left on device\n")


def test_a_model_that_does_not_fit_does_not_fit_with_a_number_of_blocks_either(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = ("--set", "deployment.pools.main.memory.kv_blocks=100000")
    assert "does not fit" in error_of(capsys, "run", path, "--set", "model=llama-3.1-405b", *blocks)
    assert "kv_blocks_exceed_memory" in capsys_codes(capsys, path, *blocks)


@pytest.mark.parametrize("option", ["--out", "--steps"])
def test_an_empty_name_is_not_the_working_directory(
    path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(path), option, ""])
    assert stopped.value.code == 2
    assert "the name is empty" in capsys.readouterr().err


def test_processes_are_of_several_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(path), "--jobs", "2"]) == 2
    assert "--jobs has no meaning without --seeds" in capsys.readouterr().err


def test_a_trace_s_statistics_say_nothing_of_a_scheduler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "shared.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n0,9,1,a,9\n1,9,1,a,9\n")
    assert main(["trace", "stats", str(trace)]) == 0
    output = capsys.readouterr()
    assert "prefix" not in output.out + output.err


def test_tables_in_a_pipe_cut_no_words(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["run", str(path)]) == 0
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--gpu", "h200-sxm"], ["--set", "version=vllm-0.10"], ["--leave-one-model-out"]])
def test_options_of_measured_files_need_one(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", *options]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert "validate needs FILE" in output.err
