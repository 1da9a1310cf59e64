"""Pictures of a validation: predicted against measured, or the errors of a few rows one by one."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from simulator.common.console import short
from simulator.validation.errors import Compared, unit_of
from simulator.validation.rows_report import FEW, name_of, plain_name, shown, sort_key

#: Least end of an axis of errors, in percent.
_NARROWEST = 12.0
#: An error more than this factor above the next smaller one does not fit on the axis.
_FAR = 5.0


def picture(compared: Sequence[Compared], more: Sequence[str] = ()) -> bytes:
    """Return a PNG of the rows whose errors are summed up; `more` are metrics beside the usual ones.

    With more than a few rows, it has a panel for each metric, predicted against measured, with logarithmic axes; else a
    panel for each row, with a bar for the error of each metric.
    """
    judged = [entry for entry in compared if not entry.left_out]
    figure = _bars(judged) if len(judged) <= FEW else _scatter(judged, shown(judged, more))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _bars(judged: Sequence[Compared]) -> Any:
    rows = [(name_of(entry), _pairs_of(entry)) for entry in judged]
    heights = [max(len(pairs), 2) for _, pairs in rows] or [2]
    figure = _figure(9.0, 0.9 * max(len(rows), 1) + 0.3 * sum(heights))
    panels = np.atleast_1d(figure.subplots(len(heights), 1, height_ratios=heights))
    if not rows:
        panels[0].set_axis_off()
        panels[0].text(0.5, 0.5, "no row whose errors are summed up", ha="center", va="center")
    for panel, (name, pairs) in zip(panels, rows, strict=False):
        _error_bars(panel, name, pairs)
    return figure


def _pairs_of(entry: Compared) -> list[tuple[str, float, float]]:
    pairs = [pair for pair in entry.pairs() if pair[1] > 0 and pair[0] not in entry.row.given]
    return sorted(pairs, key=lambda pair: sort_key(pair[0]))


def _error_bars(panel: Any, name: str, pairs: Sequence[tuple[str, float, float]]) -> None:
    """Draw a bar for each metric's error in percent, with both values beside it."""
    errors = [100 * (predicted / measured - 1) for _, measured, predicted in pairs]
    low, high = _ends(errors)
    panel.axvspan(-10, 10, color="#e2e8f0", zorder=0)
    panel.axvline(0, color="#4a5568", linewidth=1)
    places = range(len(pairs))
    panel.barh(places, errors, height=0.62, color=["#2b6cb0" if error < 0 else "#c05621" for error in errors])
    for place, (metric, measured, predicted), error in zip(places, pairs, errors, strict=True):
        text = f"{short(measured)} → {short(predicted)} {unit_of(metric)}  ({error:+.1f}%)"
        panel.text(1.02, place, text, transform=panel.get_yaxis_transform(), va="center", fontsize=9)
        if not low <= error <= high:
            _mark_beyond(panel, place, error, (low, high))
    panel.set_yticks(places, [plain_name(metric) for metric, _, _ in pairs], fontsize=9)
    panel.set(xlim=(low, high), xlabel="error of the prediction, % (band: 10%)", ylim=(len(pairs) - 0.4, -0.6))
    panel.set_title(f"{name}: measured → predicted", fontsize=11, loc="left")


def _ends(errors: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis of these errors: it holds all but those far beyond the others."""
    sizes = sorted(map(abs, errors))
    end = max([_NARROWEST, *sizes[: (len(sizes) + 1) // 2]])  # the smaller half always fits
    for size in sizes:
        end = max(end, size) if size <= _FAR * end else end
    low, high = (max(_NARROWEST, min(end, max((sign * error for error in errors), default=0.0))) for sign in (-1, 1))
    return -1.1 * low, 1.1 * high


def _mark_beyond(panel: Any, place: int, error: float, ends: tuple[float, float]) -> None:
    """Write the error of a bar that exceeds the axis at the end of the axis."""
    text, at, side = (f"{error:+.0f}% ▶", ends[1], "right") if error > 0 else (f"◀ {error:+.0f}%", ends[0], "left")
    panel.text(at, place, f" {text} ", ha=side, va="center", fontsize=9, color="white", fontweight="bold")


def _scatter(judged: Sequence[Compared], names: Sequence[str]) -> Any:
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = _figure(4.2 * columns, 4.0 * lines)
    panels = np.atleast_1d(figure.subplots(lines, columns)).ravel()
    models = list(dict.fromkeys(entry.row.labels.get("model", "") for entry in judged))
    for panel, name in zip(panels, names, strict=False):
        points = [
            (entry.row.labels.get("model", ""), measured, predicted)
            for entry in judged
            for metric, measured, predicted in entry.pairs()
            if metric == name and metric not in entry.row.given
        ]
        _panel(panel, name, points, models)
    for panel in panels[len(names) :]:
        panel.set_axis_off()
    if len(models) > 1:
        legends = [panel.get_legend_handles_labels() for panel in panels]
        named = {text: handle for handles, texts in legends for handle, text in zip(handles, texts, strict=True)}
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
        )
    return figure


def _panel(panel: Any, name: str, points: Iterable[tuple[str, float, float]], models: list[str]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    values = [(model, measured, predicted) for model, measured, predicted in points if measured > 0 and predicted > 0]
    for number, model in enumerate(models):
        pairs = [(measured, predicted) for of, measured, predicted in values if of == model]
        if pairs:
            panel.scatter(*zip(*pairs, strict=True), s=22, color=f"C{number % 10}", label=model, alpha=0.8)
    if values:
        ends = [min(min(pair[1:]) for pair in values) / 1.2, max(max(pair[1:]) for pair in values) * 1.2]
        panel.plot(ends, ends, color="#4a5568", linewidth=1)
        panel.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#e2e8f0", zorder=0)
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
            axis.set_minor_locator(NullLocator())
    unit = unit_of(name)
    panel.set(
        xlabel=f"measured, {unit}" if unit else "measured",
        ylabel=f"predicted, {unit}" if unit else "predicted",
        title=f"{plain_name(name)} (band: 10%)",
    )
