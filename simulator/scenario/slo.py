"""Service level objectives: limits of latencies, by request and by statistic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import ClassVar

from simulator.scenario.numbers import PositiveDuration
from simulator.scenario.setting import setting

#: Metrics with one value for each request, whose limits define goodput.
BY_REQUEST = ("ttft", "tpot", "e2e")


@setting()
class Limits:
    """Limits of one metric: `limit` for each request, for goodput, and the others for statistics of the whole run."""

    FROM_SCALAR: ClassVar[str] = "limit"
    limit: PositiveDuration | None = None
    mean: PositiveDuration | None = None
    p50: PositiveDuration | None = None
    p90: PositiveDuration | None = None
    p95: PositiveDuration | None = None
    p99: PositiveDuration | None = None
    max: PositiveDuration | None = None

    def __post_init__(self) -> None:
        if self.limit is None and not any(True for _ in self.of_statistics()):
            raise ValueError(f"needs at least one of {', '.join(field.name for field in fields(self))}")

    def of_statistics(self) -> Iterator[tuple[str, int]]:
        """Yield the statistics that have a limit, and their limits in ns."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "limit" and value is not None:
                yield field.name, value


@setting()
class Slo:
    """Service level objectives, by metric of the summary. A bare duration of `ttft`, `tpot` or `e2e` is a limit for
    each request: goodput counts the requests that meet all such limits."""

    ttft: Limits | None = None
    itl: Limits | None = None
    itl_event: Limits | None = None
    tpot: Limits | None = None
    e2e: Limits | None = None
    queue: Limits | None = None
    stall: Limits | None = None
    client_ttft: Limits | None = None
    client_e2e: Limits | None = None

    def __post_init__(self) -> None:
        if not any(True for _ in self.metrics()):
            raise ValueError("needs at least one metric, such as ttft: {p95: 1s}")
        for name, limits in self.metrics():
            if limits.limit is not None and name not in BY_REQUEST:
                raise ValueError(
                    f"{name}: a limit for each request is for {', '.join(BY_REQUEST)}; give one for a statistic, such "
                    f"as {name}: {{p99: 50ms}}"
                )

    def metrics(self) -> Iterator[tuple[str, Limits]]:
        """Yield the metrics that have limits, and their limits."""
        for field in fields(self):
            limits = getattr(self, field.name)
            if limits is not None:
                yield field.name, limits

    def by_request(self) -> dict[str, int]:
        """Return the limits in ns for each request, by metric."""
        return {name: limits.limit for name, limits in self.metrics() if limits.limit is not None}

    def by_statistic(self) -> list[tuple[str, str, int]]:
        """Return (metric, statistic, limit in ns) of each limit for the whole run."""
        return [(name, *pair) for name, limits in self.metrics() for pair in limits.of_statistics()]
