"""What of a run's summary is compared: one number a metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a summary, at the dotted path `name`, and what it is called in a table."""

    name: str
    label: str


_LATENCY = {
    "ttft_ms": ("TTFT", ("mean", "p50", "p95", "p99")),
    "itl_ms": ("ITL", ("mean", "p50", "p95", "p99", "max")),
    "stall_ms": ("stall", ("mean", "p95", "p99")),
    "e2e_ms": ("E2E", ("mean", "p50", "p95", "p99")),
}
_OF_CLASSES = {"ttft_ms": ("TTFT", "p95"), "itl_ms": ("ITL", "p99")}
_OTHERS = (
    Metric("throughput.output_tokens_per_s", "output tokens/s"),
    Metric("throughput.requests_per_s", "requests/s"),
    Metric("throughput.goodput_per_s", "goodput, requests/s"),
    Metric("cost.usd_per_1k_tokens", "USD per 1k tokens"),
    Metric("cost.gpu_hours", "GPU-hours"),
    Metric("engine.preemptions", "preemptions"),
    Metric("requests.completed", "completed"),
    Metric("requests.rejected", "refused"),
)


def metrics_of(summaries: Sequence[Summary]) -> tuple[Metric, ...]:
    """The metrics that any of the summaries has, in the order of the table; those of classes if there are several."""
    classes = tuple(dict.fromkeys(name for summary in summaries for name in summary.get("by_class", {})))
    return tuple(
        metric for metric in _known(classes) if any(value_of(summary, metric) is not None for summary in summaries)
    )


def value_of(summary: Summary, metric: Metric) -> float | None:
    """The number of a metric, None where the summary does not have it."""
    parent, _, name = metric.name.rpartition(".")
    place: Any = summary
    for key in _keys(parent):
        place = place.get(key)
        if place is None:
            return None
    value: float | None = place.get(name)
    return value


def _known(classes: tuple[str, ...]) -> Iterator[Metric]:
    for block, (label, names) in _LATENCY.items():
        yield from (Metric(f"latency.{block}.{name}", f"{label} {name}, ms") for name in names)
    for group in classes if len(classes) > 1 else ():
        for block, (label, name) in _OF_CLASSES.items():
            yield Metric(f"by_class.{group}.{block}.{name}", f"{group}: {label} {name}, ms")
    yield from _OTHERS


def _keys(parent: str) -> list[str]:
    """The keys of a dotted path; the name of a class may itself have dots in it."""
    first, _, rest = parent.partition(".")
    if first == "by_class":
        group, _, block = rest.rpartition(".")
        return [first, group, block]
    return parent.split(".")
