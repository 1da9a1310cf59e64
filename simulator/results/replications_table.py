"""Replications as tables for people."""

from __future__ import annotations

from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from simulator.results.latency_table import latency_tables
from simulator.screen import Screen, numbers_table, short

Summary = dict[str, Any]

_RATES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "tokens/s in all",
    "goodput_per_s": "goodput, requests/s",
}


def print_replications(summary: Summary, stream: TextIO | None = None) -> None:
    """Print what `pooled_summary` returned to `stream` (stdout if None)."""
    console = Screen(stream)
    count, seeds = summary["replications"], summary["seeds"]
    runs = f"{count} runs, seeds {seeds[0]} to {seeds[-1]}" if count > 1 else f"one run, seed {seeds[0]}"
    console.print(Text(f"{summary['scenario']}, {runs}", style="bold"))
    counts = [f"{number:,} {name.replace('_', ' ')}" for name, number in summary["requests"].items() if number]
    console.print(Text(f"requests of all runs: {', '.join(counts)}"))
    for table in (_rates(summary["rates"]), *latency_tables(summary), _runs(summary["runs"])):
        console.print()
        console.print(table)
    for warning in summary["warnings"]:
        console.print()
        console.print(Text(f"{warning['code']}: {warning['text']}", style="yellow"))


def _rates(rates: Summary) -> Table:
    table = numbers_table("mean of the runs", ("mean", "95% interval", "lowest", "highest"), width=20)
    for name, rate in rates.items():
        bounds = "-" if rate["ci95"] is None else "..".join(short(bound) for bound in rate["ci95"])
        table.add_row(_RATES[name], short(rate["mean"]), bounds, short(min(rate["values"])), short(max(rate["values"])))
    return table


def _runs(runs: list[Summary]) -> Table:
    """A row a run, so that one that differs from all others is seen."""
    table = numbers_table("each run, ms", ("completed", "TTFT mean", "TTFT p99", "ITL mean", "ITL p99", "E2E mean"))
    for run in runs:
        cells = [_cell(run["latency"], *place) for place in _SHOWN]
        table.add_row(f"seed {run['seed']}", f"{run['requests']['completed']:,}", *cells)
    return table


_SHOWN = (("ttft_ms", "mean"), ("ttft_ms", "p99"), ("itl_ms", "mean"), ("itl_ms", "p99"), ("e2e_ms", "mean"))


def _cell(latency: Summary, metric: str, statistic: str) -> str:
    return short(latency[metric][statistic]) if metric in latency else "-"
