"""A finished run or its results directory as data frames, figures and short texts, for notebooks and scripts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from simulator.results.record import RunRecord
from simulator.results.warmup import select

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SHOWN = {"ttft_ms": "TTFT", "itl_ms": "ITL", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
_STATISTICS = ("mean", "p50", "p95", "p99", "max")


class RunView:
    """The columns of `record` as pandas data frames, built on first use, figures, and short representations of a run.

    `summary` is the document that `servesim run --json` prints.
    """

    record: RunRecord
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request.

        Columns: those of `record.requests`, with names for `status` and `refusal`; `class_name`; `ttft_ms`, `tpot_ms`,
        `e2e_ms` and `queue_ms`, NaN where undefined; and the other parts of its E2E, such as `stall_ms`.
        """
        from simulator.results.frames import request_frame

        return request_frame(self.record)

    @cached_property
    def segments(self) -> pd.DataFrame:
        """One row per segment: the columns of `record.segments`, the times of its first and last token in ns, and its
        `tokens`.
        """
        from simulator.results.frames import segment_frame

        return segment_frame(self.record)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step: `replica`, `step`, the columns of `record.steps`, `paused` as a Boolean; with speculation
        also `draft_tokens` and `draft_ns`.
        """
        from simulator.results.frames import step_frame

        return step_frame(self.record)

    @property
    def _warmup(self) -> Literal["none", "mser5"] | int:
        """Rule for the warm-up: none, MSER-5, or a time in ns."""
        raise NotImplementedError

    def latency_figure(self) -> Figure:
        """Draw the distributions of TTFT and ITL, as `servesim plot` does in `latency.png`."""
        from simulator.results.plots import latency_figure

        return latency_figure(self.record, self.summary, select(self.record, self._warmup).kept)

    def load_figure(self) -> Figure:
        """Draw requests, KV memory and tokens over time, as `servesim plot` does in `load.png`."""
        from simulator.results.plots import load_figure

        return load_figure(self.record, self.summary)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._title()}: {'; '.join(self._main_figures())})"

    def _repr_html_(self) -> str:
        """Return the main figures, the simulated engine, the latencies in ms and the warnings as HTML."""
        from simulator.common.html import heading, listed, paragraph

        facts = paragraph("; ".join(self._main_figures()))
        facts += "".join(paragraph(f"{label}: {line}") for label, line in self._engine())
        return heading(self._title()) + facts + latency_html(self.summary) + listed(self.summary["warnings"])

    def _engine(self) -> list[tuple[str, str]]:
        from simulator.results.schedulers import scheduler_rows

        return scheduler_rows(self.summary.get("schedulers", {}))

    def _title(self) -> str:
        partial = " (interrupted)" if self.summary.get("partial") else ""
        return f"{self.summary['scenario']}, seed {self.summary['seed']}{partial}"

    def _main_figures(self) -> list[str]:
        """Return the main figures of the run."""
        from simulator.common.console import short

        figures = main_figures(self.summary)
        if "throughput" in self.summary:
            figures.append(f"{short(self.summary['throughput']['output_tokens_per_s'])} output tokens/s")
        if "cost" in self.summary:
            figures.append(f"{short(self.summary['cost']['usd'])} USD")
        if self.summary.get("slo", {}).get("objectives"):
            from simulator.results.latency_table import verdict_of

            figures.append(verdict_of(self.summary))
        return figures + warning_count(self.summary)


def main_figures(summary: dict[str, Any]) -> list[str]:
    """Return the numbers of completed requests and the main latencies, of a run or of replications."""
    from simulator.common.console import short

    counts, latency = summary["requests"], summary["latency"]
    figures = [f"{counts['completed']:,} of {counts['submitted']:,} requests completed"]
    if "ttft_ms" in latency:
        figures.append(f"TTFT p50 {short(latency['ttft_ms']['p50'])} ms, p99 {short(latency['ttft_ms']['p99'])} ms")
    if "itl_ms" in latency:
        figures.append(f"ITL mean {short(latency['itl_ms']['mean'])} ms")
    return figures


def warning_count(summary: dict[str, Any]) -> list[str]:
    """Return the number of warnings as a text; an empty list if there are none."""
    warnings = len(summary["warnings"])
    return [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []


def latency_html(summary: dict[str, Any]) -> str:
    """Return the latencies of a summary in ms as an HTML table; an empty text if no request was served."""
    from simulator.common.console import short
    from simulator.common.html import table

    latency = summary["latency"]
    rows = [
        (label, *(short(latency[metric][name]) for name in _STATISTICS))
        for metric, label in _SHOWN.items()
        if metric in latency
    ]
    return table("ms", _STATISTICS, rows) if rows else ""
