"""`servesim list`, `servesim trace stats` and `--version`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import main


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gpus", {"h100-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "h200-sxm", "l40s"}),
        ("models", {"llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "gpt-oss-120b"}),
        ("schedulers", {"vllm", "static", "orca", "prefill_first", "sarathi", "distserve"}),
        ("routers", {"random", "round_robin", "least_requests", "least_tokens", "power_of_d", "least_waiting"}),
        ("proposers", {"draft_model", "ngram", "eagle", "eagle3", "mtp", "medusa"}),
        ("acceptance", {"eagle3-llama-3.1-8b-mtbench", "ngram-llama-3.1-8b-sharegpt", "mtp-deepseek-v3-low"}),
        ("formats", {"azure", "native"}),
        ("scenarios", {"quickstart", "bench/steady_100k", "bench/fleet_1m"}),
    ],
)
def test_list(kind: str, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    heading, *listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert heading == "NAME"
    assert expected <= set(listed)
    assert listed == sorted(listed) or kind in ("routers", "schedulers", "proposers")  # the schema's order


def listed_as_json(kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert main(["list", kind, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_facts_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = listed_as_json("gpus", capsys)
    h100, a100 = gpus["h100-sxm"], gpus["a100-sxm-40gb"]
    assert h100["memory_bytes"] == 80 * 2**30
    assert h100["peak_flops"]["bf16"] == pytest.approx(989e12, rel=1e-3)
    assert h100["bandwidth_bytes_per_s"] == pytest.approx(3.35e12)
    assert (h100["kernels"], h100["calibrated_as"]) == ("calibrated", "h100-sxm")
    assert "NVIDIA H100 80GB HBM3" in h100["aliases"]
    assert "fp8" not in a100["peak_flops"]
    assert a100["calibrated_as"] == "a100-sxm-80gb"
    main(["list", "gpus"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("h100-sxm")]
    for fact in ("80 GiB", "3.35 TB/s", "989", "1,979", "calibrated", "NVIDIA H100 80GB HBM3"):
        assert fact in line


def test_a_gpu_without_measured_kernels_is_said_to_be_estimated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cost_models.kernels.files._FOLDER", tmp_path)
    assert {row["kernels"] for row in listed_as_json("gpus", capsys).values()} == {"estimated"}


def test_facts_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    models = listed_as_json("models", capsys)
    llama, deepseek = models["llama-3.1-8b"], models["deepseek-v3"]
    assert llama["parameters"] == llama["active_parameters"] == 8_030_261_248  # as Meta's checkpoint has
    assert (llama["max_position"], llama["kv_bytes_per_token"], llama["weights"]) == (131072, 131072, "bf16")
    assert deepseek["weights"] == "fp8"
    assert deepseek["active_parameters"] == pytest.approx(37e9, rel=0.03)
    assert models["gpt-oss-120b"]["weights"] == "mxfp4"


def test_everything_that_can_be_listed_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    kinds = [line.split()[0] for line in capsys.readouterr().out.splitlines()][1:]
    assert {"gpus", "hosts", "scenarios"} <= set(kinds)
    for kind in kinds:
        for row in listed_as_json(kind, capsys).values():
            assert row["name"]
            assert kind in ("gpus", "models", "acceptance") or row["description"]


def test_lists_are_plain_lines_in_a_pipe_and_wrapped_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    main(["list", "schedulers"])
    plain = capsys.readouterr().out.splitlines()
    assert max(map(len, plain)) > 60
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["list", "schedulers"])
    wrapped = capsys.readouterr().out.splitlines()
    assert max(map(len, wrapped)) <= 60
    assert " ".join(" ".join(wrapped).split()) == " ".join(" ".join(plain).split())


def test_trace_stats_of_a_shipped_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "stats", "azure_conv_sample.csv", "--json"]) == 0
    statistics = json.loads(capsys.readouterr().out)["azure_conv_sample.csv"]
    assert statistics["format"] == "azure"
    assert statistics["requests"] == 2000
    assert statistics["rate_per_s"] == pytest.approx(5.53, rel=0.02)
    assert main(["trace", "stats", "azure_conv_sample.csv", "azure_code_sample.csv"]) == 0
    assert "CV of gaps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.csv"], "none.csv: no such file"),
        (
            ["azure_conv_sample.csv", "--trace-format", "azur"],
            "--trace-format: 'azur' is not known; did you mean azure?",
        ),
    ],
)
def test_trace_stats_mistakes(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "stats", *arguments]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_a_row_that_is_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17\n")
    assert main(["trace", "stats", str(trace)]) == 2
    assert "t.csv:3:" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("servesim ")


def test_no_figure_of_many_traces_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"requests_of_tenant_{number}.csv" for number in range(9)]
    for number, file in enumerate(files):
        file.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{10_000 + number},1\n1,{10_000 + number},1\n")
    for width in ("60", "300"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["trace", "stats", *map(str, files)]) == 0
        printed = capsys.readouterr().out
        assert all(f"{10_000 + number:,}" in printed for number in range(9))
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["trace", "stats", *map(str, files)]) == 0
    printed = capsys.readouterr().out
    assert all(f"{10_000 + number:,}" in printed for number in range(9))
    assert printed.count("Trace statistics") > 1
