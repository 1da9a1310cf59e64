"""The figures of a run: latency distributions, and load over time."""

from __future__ import annotations

import math
import warnings
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from simulator.results.columns import Ints, Status
from simulator.results.itl import itl_values
from simulator.results.occupancy import Occupancy
from simulator.results.record import PoolFacts, RunRecord
from simulator.results.segments import tokens_per_step

Floats = NDArray[np.float64]

_DPI = 110
_LATENCY_BINS = 400
_FEWEST_TIME_BINS, _MOST_TIME_BINS = 30, 240
#: The most letters of a pool's name that fit beside the legend.
_LONGEST_NAME = 28
#: Inches of a row of panels, and of the margins above and below all of them.
_ROW, _MARGINS = 1.75, 0.95
_BLUE, _ORANGE, _RED, _GREY, _LIGHT = "#2b6cb0", "#dd6b20", "#c53030", "#4a5568", "#e2e8f0"
_LIMIT_STYLES = ("-", "--", ":", "-.")
_MARKS = {"p50": ":", "p95": "--", "p99": "-"}


def latency_figure(record: RunRecord, summary: dict[str, Any], kept: NDArray[np.bool_]) -> Figure:
    """Draw the cumulative distributions of TTFT and ITL of the requests where `kept` is True, over logarithmic axes."""
    figure = new_figure(_title(summary), width=9.0, height=3.8)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.13, top=0.84, wspace=0.18)
    requests, latency = record.requests, summary["latency"]
    ttft_ns = (requests.first_token_ns - requests.arrival_ns)[kept]
    _cumulative(left, ttft_ns, np.ones(len(ttft_ns)), latency.get("ttft_ms"), _limits(summary, "ttft_ms"))
    _cumulative(right, *itl_values(record, kept), latency.get("itl_ms"), _limits(summary, "itl_ms"))
    left.set(xlabel="time to first token, ms", ylabel="share of requests")
    within = " (0 within an event)" if "itl_event_ms" in latency else ""
    right.set(xlabel=f"inter-token latency, ms{within}", ylabel="share of tokens")
    return figure


def load_figure(record: RunRecord, summary: dict[str, Any]) -> Figure:
    """Draw over time: running and waiting requests, KV memory in use, and requests and tokens per second.

    With several pools, each has a row for its requests and its memory.
    """
    lines = _Lines(record)
    if len(record.pools) < 2:
        figure = new_figure(_title(summary), width=9.0, height=7.2)
        panels = figure.subplots(4, 1, sharex=True)
        figure.subplots_adjust(left=0.09, right=0.98, bottom=0.07, top=0.93, hspace=0.28)
        queues, memories, flow, tokens = [panels[0]], [panels[1]], panels[2], panels[3]
    else:
        rows = len(record.pools) + 1
        height = _ROW * rows + _MARGINS
        figure = new_figure(_title(summary), width=11.0, height=height)
        panels = figure.subplots(rows, 2, sharex=True)
        bottom, top = 0.5 / height, 1 - 0.62 / height
        figure.subplots_adjust(left=0.07, right=0.985, bottom=bottom, top=top, hspace=0.42, wspace=0.2)
        queues, memories, (flow, tokens) = list(panels[:-1, 0]), list(panels[:-1, 1]), panels[-1]
        for queue, memory, pool in zip(queues, memories, record.pools, strict=True):
            queue.set_title(_pool_title(pool), loc="left", fontsize=9, color=_GREY)
            memory.set_title(_pool_size(pool), loc="left", fontsize=9, color=_GREY)
        flow.set_title("all pools", loc="left", fontsize=9, color=_GREY)
    for queue, memory, pool in zip(queues, memories, record.pools, strict=True):
        lines.draw_pool(queue, memory, pool)
    lines.draw_flow(flow, tokens)
    for axes in figure.axes[-2:] if len(record.pools) > 1 else [tokens]:
        axes.set_xlabel("time, s")
    figure.align_ylabels()
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG; equal figures give equal bytes."""
    with warnings.catch_warnings():  # the font lacks some scripts and draws boxes
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from (current )?font")
        figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _title(summary: dict[str, Any]) -> str:
    partial = " (interrupted)" if summary.get("partial") else ""
    return f"{summary['scenario']}, seed {summary['seed']}{partial}"


def new_figure(title: str, width: float, height: float) -> Figure:
    """Return an empty figure; sizes are in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.suptitle(literal(title), fontsize=10, color=_GREY)
    return figure


def literal(name: str) -> str:
    """Return a name with `$` escaped, which matplotlib would read as a formula."""
    return name.replace("$", r"\$")


def style_axes(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """Apply the common style of all figures; `grid` is the axis whose ticks have lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=_LIGHT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)


def _cumulative(
    axes: Axes,
    values_ns: NDArray[np.number],
    weights: NDArray[np.number],
    block: dict[str, Any] | None,
    limits: dict[str, float],
) -> None:
    """Draw a distribution with its percentiles, and the SLO's `limits` in ms by the name of their statistic."""
    style_axes(axes)
    if block is None:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color=_GREY)
        axes.set(xticks=[], yticks=[])
        return
    values_ms = values_ns / 1e6
    # A logarithmic axis excludes 0: the line begins at the share of such values.
    above_0 = values_ms[values_ms > 0]
    low, high = above_0.min(initial=values_ms.max(initial=1e-6)) * 0.95, values_ms.max(initial=1e-6) * 1.05
    low = min([low, *(0.95 * limit for limit in limits.values())])
    high = max([high, *(1.05 * limit for limit in limits.values())])
    edges = np.geomspace(low, high, _LATENCY_BINS + 1)
    counts, _ = np.histogram(np.maximum(values_ms, low), edges, weights=weights)
    axes.plot(edges[1:], np.cumsum(counts) / counts.sum(), color=_BLUE, linewidth=1.8)
    for name, style in _MARKS.items():
        label = f"{name}  {_milliseconds(block[name])}"
        axes.axvline(max(block[name], low), color=_ORANGE, linestyle=style, linewidth=1, label=label)
    for (name, limit), style in zip(limits.items(), cycle(_LIMIT_STYLES)):
        axes.axvline(limit, color=_RED, linestyle=style, linewidth=1.4, label=f"SLO {name}  {_milliseconds(limit)}")
    axes.set(ylim=(0, 1.02))
    time_axis(axes, low, high)
    _legend(axes)


def time_axis(axes: Axes, low: float, high: float) -> None:
    """Make the x axis logarithmic, in ms from `low` to `high`, with plain numbers."""
    axes.set(xscale="log", xlim=(low, high))
    axes.xaxis.set_major_locator(_ticks(low, high))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,g}")


def _ticks(low: float, high: float) -> Locator:
    """Return the ticks of a logarithmic axis, few enough that their labels do not overlap."""
    decades = math.log10(high / low)
    if decades < 1:
        return MaxNLocator(5, steps=[1, 2, 5, 10])
    subs = (1.0, 2.0, 5.0) if decades < 2.3 else (1.0, 3.0) if decades < 4 else (1.0,)
    return LogLocator(subs=subs, numticks=9)


def _legend(axes: Axes) -> None:
    """Place the legend above the axes, where it covers no lines."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1, fontsize=8, frameon=False, ncols=3)


def _limits(summary: dict[str, Any], metric: str) -> dict[str, float]:
    """Return the SLO's limits in ms for the statistics of this metric, and for each request."""
    slo = summary.get("slo", {})
    objectives = [*slo.get("objectives", ()), *slo.get("by_request", ())]
    return {each.get("statistic", "each"): each["limit_ms"] for each in objectives if each["metric"] == metric}


def _milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 1000 else f"{value:.4g} ms"


def _pool_title(pool: PoolFacts) -> str:
    """Return a pool's name, and its role if the name does not show it."""
    role = "" if pool.role in ("both", pool.name) else f" ({pool.role})"
    name = pool.name if len(pool.name) <= _LONGEST_NAME else f"{pool.name[: _LONGEST_NAME - 1]}…"
    return literal(name) + role


def _pool_size(pool: PoolFacts) -> str:
    replicas = f"{pool.replicas:,} replica{'s' * (pool.replicas > 1)}"
    return f"{replicas}, {pool.gpus:,} GPU{'s' * (pool.gpus > 1)}"


class _Lines:
    """Time series of a run between equidistant times, and methods to draw them."""

    def __init__(self, record: RunRecord) -> None:
        self._record, occupancy = record, Occupancy(record)
        end_ns = max(record.end_ns, record.start_ns + 1)
        bins = int(np.clip(len(record.requests.status) // 10, _FEWEST_TIME_BINS, _MOST_TIME_BINS))
        self._edges_ns = np.unique(np.linspace(record.start_ns, end_ns, bins + 1).astype(np.int64))
        self._edges_s = (self._edges_ns - record.start_ns) / 1e9
        steps = record.steps
        self._waiting = occupancy.over_time(steps.waiting, self._edges_ns)
        self._running = occupancy.over_time(steps.running, self._edges_ns)
        self._use = occupancy.over_time(record.kv_use(), self._edges_ns) * 100

    def draw_pool(self, queue: Axes, memory: Axes, pool: PoolFacts) -> None:
        """Draw the requests and the KV memory of a pool."""
        mine = slice(pool.first, pool.first + pool.cores)
        self._plot(queue, self._waiting[mine].sum(axis=0), _ORANGE, "waiting")
        self._plot(queue, self._running[mine].sum(axis=0), _BLUE, "running")
        if pool.replicas > 1:
            self._plot(memory, self._use[mine].max(axis=0), _ORANGE, "fullest replica")
        self._plot(memory, self._use[mine].mean(axis=0), _BLUE, "all replicas" if pool.replicas > 1 else "in use")
        self._finish(queue, "requests", integer=True)
        self._finish(memory, "KV memory, %")
        queue.set_ylim(0, max(1.0, queue.get_ylim()[1]))
        memory.set_ylim(0, 102)

    def draw_flow(self, flow: Axes, tokens: Axes) -> None:
        """Draw requests and tokens per second of all pools."""
        record, requests, steps = self._record, self._record.requests, self._record.steps
        arrived = requests.arrival_ns[requests.status != Status.NOT_ARRIVED]
        self._plot(flow, self._per_second(arrived), _ORANGE, "arrivals")
        self._plot(flow, self._per_second(requests.finish_ns[requests.finish_ns >= 0]), _BLUE, "completions")
        self._plot(tokens, self._per_second(steps.end_ns, steps.prefill_tokens), _ORANGE, "prefill")
        self._plot(tokens, self._per_second(steps.end_ns, tokens_per_step(record)), _BLUE, "output")
        self._finish(flow, "requests/s")
        self._finish(tokens, "tokens/s")

    def _plot(self, axes: Axes, values: Floats, color: str, label: str) -> None:
        axes.stairs(values, self._edges_s, color=color, label=label, linewidth=1.2)

    def _per_second(self, times_ns: Ints, weights: Ints | None = None) -> Floats:
        return np.histogram(times_ns, self._edges_ns, weights=weights)[0] / np.diff(self._edges_s)

    def _finish(self, axes: Axes, label: str, integer: bool = False) -> None:
        style_axes(axes)
        axes.set(ylabel=label, xlim=(0, self._edges_s[-1]), ylim=(0, None if axes.dataLim.ymax > 0 else 1))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=integer, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter("{x:,g}")
        _legend(axes)
