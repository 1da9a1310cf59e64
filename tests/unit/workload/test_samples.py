"""The sample traces that are shipped: reproducible, like their originals, and as their README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.scenario.traffic import Workload
from simulator.workload import load_requests
from simulator.workload.stats import TokenStatistics, TraceStatistics, trace_statistics

TRACES = Path(__file__).resolve().parents[3] / "traces"
SAMPLES = ("azure_code_sample.csv", "azure_conv_sample.csv", "chat_sample.jsonl")


def figures(path: Path) -> TraceStatistics:
    table = load_requests(Workload(trace=str(path)), 0, Path)
    assert table.notes == ()
    return trace_statistics(table)


def test_the_samples_are_what_the_script_writes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TRACES.parent)}
    subprocess.run([sys.executable, TRACES / "generate_samples.py", tmp_path], env=environment, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(SAMPLES)
    for name in SAMPLES:
        assert (tmp_path / name).read_bytes() == (TRACES / name).read_bytes()


def test_the_samples_are_small() -> None:
    assert sum((TRACES / name).stat().st_size for name in SAMPLES) < 200_000


@pytest.mark.parametrize(("sample", "original"), [("code", "code"), ("conv", "conv")])
def test_the_samples_have_the_figures_of_the_originals(shared: Path, sample: str, original: str) -> None:
    found = figures(TRACES / f"azure_{sample}_sample.csv")
    exact = figures(shared / "traces" / "azure" / f"AzureLLMInferenceTrace_{original}.csv")
    assert found.rate_per_s == pytest.approx(exact.rate_per_s, rel=0.01)
    assert found.gap_cv == pytest.approx(exact.gap_cv, rel=0.10)
    for name in ("prompt_tokens", "output_tokens"):
        mine, theirs = getattr(found, name), getattr(exact, name)
        for figure in ("p50", "p90", "p99"):
            assert getattr(mine, figure) == pytest.approx(getattr(theirs, figure), rel=0.03)
        assert mine.mean == pytest.approx(theirs.mean, rel=0.05)


def test_the_chat_sample_has_classes() -> None:
    table = load_requests(Workload(trace=str(TRACES / "chat_sample.jsonl")), 0, Path)
    assert set(table.class_names) == {"chat", "summary", "title"}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_readme_has_the_figures_of_the_samples(name: str) -> None:
    found = figures(TRACES / name)
    rows = re.findall(rf"^\| `{re.escape(name)}` \|(.*)\|$", (TRACES / "README.md").read_text(), re.MULTILINE)
    assert [cell.strip() for cell in rows[0].split("|")][1:] == [
        f"{found.requests:,}",
        f"{found.rate_per_s:.2f}",
        f"{found.gap_cv:.2f}",
        f"{found.max_per_second}",
        f"{found.prompt_tokens.mean:.0f}",
        quantiles(found.prompt_tokens),
        f"{found.output_tokens.mean:.0f}",
        quantiles(found.output_tokens),
        f"{found.length_correlation:.2f}",
    ]


def quantiles(tokens: TokenStatistics) -> str:
    return "/".join(f"{value:.0f}" for value in (tokens.p50, tokens.p90, tokens.p99, tokens.max))
