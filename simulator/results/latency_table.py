"""Latencies, their intervals and the service level objectives as printed tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from simulator.common.console import numbers_table, short

Section = dict[str, Any]

METRICS = {
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "itl_event_ms": "ITL by event",
    "tpot_ms": "TPOT",
    "e2e_ms": "E2E",
    "queue_ms": "queue",
    "stall_ms": "stall",
    "client_ttft_ms": "client TTFT",
    "client_e2e_ms": "client E2E",
}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_WITH_INTERVAL = ("mean", "p50", "p95", "p99")
_SOURCES = {"batches": "20 batches in order of time", "replications": "the runs, by Student's t"}


def latency_tables(summary: Section) -> Iterator[Table | Text]:
    """Yield the tables of latencies and objectives in the summary of a run or of replications."""
    latency = summary["latency"]
    if latency:
        yield _latencies(latency)
        if any(bounds is not None for block in latency.values() for bounds in block["ci95"].values()):
            yield _intervals(latency)
        yield Text(_interval_note(summary["intervals"], _reasons(latency)), style="dim")
    if "slo" in summary:
        yield from _objectives(summary["slo"], latency)


def _latencies(latency: Section) -> Table:
    table = numbers_table("latency, ms", _STATISTICS)
    for metric, block in latency.items():
        table.add_row(_label(metric, latency), *(short(block[name]) for name in _STATISTICS))
    return table


def _intervals(latency: Section) -> Table:
    table = numbers_table("95% interval, ms", _WITH_INTERVAL)
    for metric, block in latency.items():
        table.add_row(_label(metric, latency), *(_interval(block["ci95"][name]) for name in _WITH_INTERVAL))
    return table


def _label(metric: str, latency: Section) -> str:
    return "ITL by token" if metric == "itl_ms" and "itl_event_ms" in latency else METRICS[metric]


def _interval(bounds: list[float] | None) -> str:
    return "-" if bounds is None else f"{short(bounds[0])}..{short(bounds[1])}"


def _reasons(latency: Section) -> set[str]:
    """Return the reasons for missing intervals."""
    return {reason for block in latency.values() for reason in block.get("ci95_reason", {}).values()}


def _interval_note(intervals: Section, reasons: set[str]) -> str:
    """Return the note on the basis of the intervals, or on the reason why there are none."""
    effective = ""
    if "needed" in intervals:
        needed = ", ".join(f"{name} {least:,}" for name, least in intervals["needed"].items())
        effective = (
            f"At this load the requests are equivalent to {intervals['independent_observations']:,} independent "
            f"observations; intervals need at least: {needed}."
        )
    if intervals["method"] == "none":
        return " ".join(filter(None, (f"No 95% intervals: {intervals['reason']}.", effective)))
    source = f"Intervals are from {_SOURCES[intervals['method']]}{_missing_note(reasons)}."
    return " ".join(filter(None, (source, effective)))


def _missing_note(reasons: set[str]) -> str:
    """Return the reason why some statistics have no interval while others have one."""
    if not reasons:
        return ""
    if "tail_too_rare" not in reasons:
        return "; for missing ones (-), ci95_reason in --json has the reason"
    rare = "values beyond the statistic occurred too rarely"
    if len(reasons) == 1:
        return f"; for missing ones (-), {rare}"
    return f"; for missing ones (-), the observations are too few, or {rare}: ci95_reason in --json has the reason"


def _objectives(slo: Section, latency: Section) -> Iterator[Table | Text]:
    table = numbers_table("SLO, ms", ("limit", "measured", "within the limit", ""))
    for each in slo.get("objectives", ()):
        measured = "none" if each["measured_ms"] is None else short(each["measured_ms"])
        name = f"{_label(each['metric'], latency)} {each['statistic']}"
        table.add_row(name, short(each["limit_ms"]), measured, _share(each["attainment"]), _verdict(each))
    for each in slo.get("by_request", ()):
        name = f"{_label(each['metric'], latency)} of each"
        table.add_row(name, short(each["limit_ms"]), "", _share(each["attainment"]), "")
    yield table
    if slo["met"] is not None:
        yield Text(_verdicts(slo, latency), style="bold green" if slo["met"] else "bold red")


def _share(attainment: float | None) -> str:
    return "-" if attainment is None else f"{attainment:.2%}"


def _verdict(objective: Section) -> str:
    word, interval = "met" if objective["met"] else "missed", objective["ci95"]
    close = interval is not None and interval[0] <= objective["limit_ms"] <= interval[1]
    return f"{word}, uncertain" if close else word


def verdict_of(summary: Section) -> str:
    """Return in one line whether a run, or its replications, met the objectives."""
    return _verdicts(summary["slo"], summary["latency"])


def _verdicts(slo: Section, latency: Section) -> str:
    """Return one line: whether all objectives are met, and the missed ones with their values."""
    missed = [each for each in slo["objectives"] if not each["met"]]
    count = len(slo["objectives"])
    if not missed:
        return f"SLO met: {f'all {count} objectives' if count > 1 else 'its only objective'}"
    found = "; ".join(_missed(each, latency) for each in missed)
    return f"SLO missed: {found} ({count - len(missed)} of {count} met)"


def _missed(objective: Section, latency: Section) -> str:
    name = f"{_label(objective['metric'], latency)} {objective['statistic']}"
    if objective["measured_ms"] is None:
        return f"{name} was not measured"
    return f"{name} {short(objective['measured_ms'])} ms > {short(objective['limit_ms'])} ms"
