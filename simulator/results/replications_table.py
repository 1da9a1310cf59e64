"""Replications as printed tables."""

from __future__ import annotations

from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from simulator.common.console import Screen, numbers_table, short
from simulator.results.latency_table import latency_tables
from simulator.results.replications import title_of
from simulator.results.schedulers import scheduler_rows

Summary = dict[str, Any]

_MEANS = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "goodput_per_s": "goodput, requests/s",
    "gpu_hours": "GPU-hours",
    "usd": "USD",
    "usd_per_1k_tokens": "USD per 1k tokens",
    "usd_per_million_output_tokens": "USD per 1M output tokens",
}


def print_replications(summary: Summary, stream: TextIO | None = None) -> None:
    """Print the result of `pooled_summary` to `stream` (stdout if None)."""
    console = Screen(stream)
    console.print(Text(title_of(summary), style="bold"))
    for label, line in scheduler_rows(summary["schedulers"]):
        console.print(Text(f"{label}: {line}"))
    counts = [f"{number:,} {name.replace('_', ' ')}" for name, number in summary["requests"].items() if number]
    console.print(Text(f"requests of all runs: {', '.join(counts)}"))
    for table in (_means(summary["rates"] | summary.get("cost", {})), *latency_tables(summary), _runs(summary["runs"])):
        console.print()
        console.print(table)
    for warning in summary["warnings"]:
        console.print()
        console.print(Text(f"{warning['code']}: {warning['text']}", style="yellow"))


def _means(means: Summary) -> Table:
    table = numbers_table("mean of the runs", ("mean", "95% interval", "lowest", "highest"), width=24)
    for name, rate in means.items():
        bounds = "-" if rate["ci95"] is None else "..".join(short(bound) for bound in rate["ci95"])
        table.add_row(_MEANS[name], short(rate["mean"]), bounds, short(min(rate["values"])), short(max(rate["values"])))
    return table


def _runs(runs: list[Summary]) -> Table:
    """Return a table with one row per run, which shows outliers."""
    table = numbers_table("each run, ms", ("completed", "TTFT mean", "TTFT p99", "ITL mean", "ITL p99", "E2E mean"))
    for run in runs:
        cells = [_cell(run["latency"], *place) for place in _SHOWN]
        table.add_row(f"seed {run['seed']}", f"{run['requests']['completed']:,}", *cells)
    return table


_SHOWN = (("ttft_ms", "mean"), ("ttft_ms", "p99"), ("itl_ms", "mean"), ("itl_ms", "p99"), ("e2e_ms", "mean"))


def _cell(latency: Summary, metric: str, statistic: str) -> str:
    return short(latency[metric][statistic]) if metric in latency else "-"
