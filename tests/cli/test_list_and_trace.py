"""`servesim list`, `servesim trace stats` and `--version`."""

from __future__ import annotations

import json
from pathlib import Path

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
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert expected <= set(listed)
    assert listed == sorted(listed) or kind in ("routers", "schedulers", "proposers")  # the schema's order


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
