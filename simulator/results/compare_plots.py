"""The figures of a comparison: latency distributions, and the parts of the requests' time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from simulator.results.attribution import PARTS
from simulator.results.plots import literal, new_figure, style_axes, time_axis

Counts = NDArray[np.integer]
Parts = Mapping[str, float]

#: Colours that are distinguishable with colour vision deficiencies (Okabe and Ito), for designs and for parts.
_DESIGNS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_PARTS = dict(zip(PARTS, ("#b0b7c3", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#000000"), strict=True))
_LINES = ("-", "--", "-.", ":")


def draw_distributions(
    edges_ms: NDArray[np.float64], ttft: Mapping[str, Counts], itl: Mapping[str, Counts], title: str
) -> Figure:
    """Draw TTFT and ITL of several designs: the cumulative distribution of TTFT, and the share of ITL above each value.

    `ttft` and `itl` count, by design, the values in each bin between `edges_ms`. The time axes are logarithmic, and so
    is the share of ITL, whose tail consists of stalls.
    """
    figure = new_figure(title, 9.6, 4.0)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.985, bottom=0.13, top=0.8, wspace=0.2)
    for number, name in enumerate(ttft):
        look = {
            "color": _DESIGNS[number % len(_DESIGNS)],
            "linestyle": _LINES[number % len(_LINES)],
            "label": literal(name),
        }
        below = np.cumsum(ttft[name]) / max(ttft[name].sum(), 1)
        left.plot(edges_ms[1:], below, linewidth=1.8, **look)
        above = 1 - np.concatenate([[0], np.cumsum(itl[name])]) / max(itl[name].sum(), 1)
        right.plot(edges_ms, np.where(above > 0, above, np.nan), linewidth=1.8, **look)
    left.set(xlabel="time to first token, ms", ylabel="share of requests at or below", ylim=(0, 1.02))
    right.set(xlabel="inter-token latency, ms", ylabel="share of tokens above", yscale="log", ylim=(1e-4, 1.2))
    _span(left, edges_ms, ttft)
    _span(right, edges_ms, itl)
    right.yaxis.set_major_formatter(lambda share, _: f"{share * 100:g}%")
    right.yaxis.set_minor_locator(NullLocator())
    figure.legend(
        *left.get_legend_handles_labels(), loc="upper center", bbox_to_anchor=(0.5, 0.93), ncols=4, frameon=False
    )
    return figure


def draw_attribution(attribution: Mapping[str, Mapping[str, Parts]], title: str) -> Figure:
    """Draw stacked bars of the parts of E2E: for each design a bar around each percentile, each percentile with its own
    scale.

    `attribution` is that of a comparison's document: by design, by percentile, the parts in ms.
    """
    designs = [name for name, found in attribution.items() if found]
    places = list(next(iter(attribution[name] for name in designs), {}))
    everything = [found for name in designs for found in attribution[name].values()]
    parts = [name for name in _PARTS if any(found.get(f"{name}_ms") for found in everything)]
    figure = new_figure(title, 9.6, 1.3 + 0.3 * len(designs) * max(len(places), 1) / 2 + 0.5)
    columns = figure.subplots(1, max(len(places), 1), squeeze=False)[0]
    for axes, place in zip(columns, places, strict=False):
        _bars(axes, {literal(name): attribution[name][place] for name in designs}, parts, place)
    for axes in columns[1:]:
        axes.tick_params(labelleft=False)
    figure.legend(
        *columns[0].get_legend_handles_labels(), loc="lower center", ncols=len(PARTS) + 1, frameon=False, fontsize=9
    )
    figure.tight_layout(rect=(0, 0.1, 1, 0.97))
    return figure


def _bars(axes: Axes, of_designs: Mapping[str, Parts], names: list[str], place: str) -> None:
    style_axes(axes, "x")
    left = np.zeros(len(of_designs))
    for name in names:
        width = np.array([parts.get(f"{name}_ms", 0.0) for parts in of_designs.values()]) / 1e3
        axes.barh(list(of_designs), width, left=left, color=_PARTS[name], label=name, height=0.62)
        left += width
    axes.invert_yaxis()
    axes.set(
        xlabel="s",
        xlim=(0, max(float(left.max(initial=0)) * 1.05, 1e-9)),
        title="mean of all" if place == "mean" else f"around {place}",
    )
    axes.title.set_fontsize(10)


def _span(axes: Axes, edges_ms: NDArray[np.float64], counts: Mapping[str, Counts]) -> None:
    """Limit the axis to the bins that any design uses, without the first bin, which holds 0, if there are others."""
    used = np.flatnonzero(np.sum([np.asarray(each) for each in counts.values()], axis=0))
    used = used[used > 0] if len(used) > 1 else used
    style_axes(axes)
    if len(used):
        time_axis(axes, float(edges_ms[used[0]]), float(edges_ms[used[-1] + 1]))
