"""The compared metrics, each a number in a run's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.results.paired import Estimate

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number in a summary, at the dotted path `name`, and its `label` in tables."""

    name: str
    label: str


_LATENCY = {
    "ttft_ms": ("TTFT", ("mean", "p50", "p95", "p99")),
    "itl_ms": ("ITL", ("mean", "p50", "p95", "p99", "max")),
    "itl_event_ms": ("ITL by event", ("mean", "p50", "p95", "p99")),
    "stall_ms": ("stall", ("mean", "p95", "p99")),
    "tpot_ms": ("TPOT", ("mean", "p50", "p99")),
    "e2e_ms": ("E2E", ("mean", "p50", "p95", "p99")),
}
_OF_CLASSES = {"ttft_ms": ("TTFT", "p95"), "itl_ms": ("ITL", "p99")}
#: Metrics that a run without speculation leaves out, since each event is one token, and the metrics equal to them.
_SAME_WITHOUT_SPECULATION = {"itl_event_ms": "itl_ms"}
_OTHERS = (
    Metric("speculation.acceptance_length", "acceptance length"),
    Metric("speculation.draft_acceptance_rate", "drafts accepted, share"),
    Metric("speculation.wasted_token_share", "wasted tokens, share"),
    Metric("speculation.draft_time_share", "time drafting, share"),
    Metric("throughput.output_tokens_per_s", "output tokens/s"),
    Metric("throughput.requests_per_s", "requests/s"),
    Metric("throughput.goodput_per_s", "goodput, requests/s"),
    Metric("cost.usd_per_1k_tokens", "USD per 1k tokens"),
    Metric("cost.usd_per_million_output_tokens", "USD per 1M output tokens"),
    Metric("cost.gpu_hours", "GPU-hours"),
    Metric("engine.preemptions", "preemptions"),
    Metric("requests.completed", "completed"),
    Metric("requests.rejected", "refused"),
)


def metrics_of(summaries: Sequence[Summary]) -> tuple[Metric, ...]:
    """Return the metrics that any summary has, in the order of the table; those of classes if there are several."""
    classes = tuple(dict.fromkeys(name for summary in summaries for name in summary.get("by_class", {})))
    return tuple(
        metric
        for metric in _all_metrics(classes)
        if any(_value_at(summary, _keys(metric)) is not None for summary in summaries)
    )


def value_of(summary: Summary, metric: Metric) -> float | None:
    """Return the value of a metric; None if the summary does not have it.

    A metric that a run without speculation leaves out has the value of the metric that it equals there.
    """
    *above, block, name = _keys(metric)
    value: float | None = _value_at(summary, [*above, block, name])
    if value is None and block in _SAME_WITHOUT_SPECULATION:
        value = _value_at(summary, [*above, _SAME_WITHOUT_SPECULATION[block], name])
    return value


def estimate_of(summary: Summary, metric: Metric) -> Estimate | None:
    """Return the value of a metric with the run's 95% interval; None without an interval."""
    *above, name = _keys(metric)
    bounds, count = (_value_at(summary, [*above, *keys]) for keys in (("ci95", name), ("count",)))
    value = value_of(summary, metric)
    if value is None or bounds is None or count is None:
        return None
    low, high = bounds
    return Estimate(value, low, high, int(count))


def _value_at(summary: Summary, keys: Sequence[str]) -> Any:
    """Return the value at these keys of nested mappings; None if there is none."""
    place: Any = summary
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else None
        if place is None:
            return None
    return place


def _all_metrics(classes: tuple[str, ...]) -> Iterator[Metric]:
    for block, (label, names) in _LATENCY.items():
        yield from (Metric(f"latency.{block}.{name}", f"{label} {name}, ms") for name in names)
    for group in classes if len(classes) > 1 else ():
        for block, (label, name) in _OF_CLASSES.items():
            yield Metric(f"by_class.{group}.{block}.{name}", f"{group}: {label} {name}, ms")
    yield from _OTHERS


def _keys(metric: Metric) -> list[str]:
    """Return the keys of a metric's path; the name of a class may contain dots."""
    first, _, rest = metric.name.partition(".")
    if first == "by_class":
        return [first, *rest.rsplit(".", 2)]
    return metric.name.split(".")
