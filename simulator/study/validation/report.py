"""The outcome of a validation: tables for people; `validation.csv`, `validation.json` and a picture for the rest."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.table import Table
from rich.text import Text

from simulator.screen import Screen, numbers_table
from simulator.study.validation.errors import ALL, FIRST_STAGES, Compared, overload_counts, summed_up
from simulator.study.validation.speculating_report import is_of_speculation, print_verdict, rows_table
from simulator.study.validation.verdict import verdict

#: Metrics of tables and pictures, where there are any; rows of speculative decoding, which have a table of their own,
#: have more of them.
_SHOWN = ("ttft_mean_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_mean_ms", "tpot_mean_ms", "tpot_p50_ms", "e2e_mean_ms")
_SPECULATING = (
    "plain_tpot_mean_ms",
    "tpot_speed_up",
    "plain_output_tok_s",
    "output_speed_up",
    "acceptance_length",
)
Groups = dict[str, dict[str, dict[str, Any]]]
#: Columns of output where it does not go to a terminal, which has its own.
_WIDTH = 150
_STATISTICS = ("n", "median_ape", "mean_ape", "p90_ape", "bias", "median_abs_ms")
_HEADINGS = ("rows", "median %", "mean %", "p90 %", "bias %", "median ms")


def print_report(compared: Sequence[Compared], stream: TextIO | None = None) -> None:
    """Print the rows, the errors by group, and what was left out and why."""
    console = Screen(stream, width=_WIDTH)
    groups = summed_up(compared)
    speculating = [entry for entry in compared if is_of_speculation(entry)]
    others = [entry for entry in compared if not is_of_speculation(entry)]
    tables = [_rows_table(others)] if others else []
    tables += [rows_table(speculating)] if speculating else []
    for table in (*tables, _metrics_table(groups), _groups_table(groups)):
        console.print(table)
        console.print()
    counts = overload_counts(compared)
    console.print(
        f"overload: {counts['predicted_to_overload']} of {counts['overloaded']} overloaded rows predicted to overload; "
        f"{counts['wrongly_predicted_to_overload']} of {counts['not_overloaded']} others"
    )
    print_verdict(console, verdict(compared))
    for title, texts in (
        ("left out of the errors", [entry.left_out for entry in compared if entry.left_out]),
        ("given, not predicted", [", ".join(entry.row.given) for entry in compared if entry.row.given]),
        ("assumed", [text for entry in compared for text in entry.row.assumptions if entry.predicted is not None]),
    ):
        for text, count in Counter(texts).items():
            console.print(Text(f"{title}, {count} row{'s' * (count > 1)}: {text}", style="yellow"))


def _rows_table(compared: Sequence[Compared]) -> Table:
    """Each row's signed errors, in percent and ms."""
    names = _shown(compared)
    headings = [name.removesuffix("_ms") for name in names]
    table = numbers_table("predicted - measured, % (ms)", headings, width=50)
    for entry in compared:
        pairs = {name: (measured, predicted) for name, measured, predicted in entry.pairs()}
        cells = [_cell(pairs.get(name)) for name in names]
        table.add_row(_name(entry), *cells, style="dim" if entry.left_out else "")
    return table


def _shown(compared: Iterable[Compared]) -> list[str]:
    compared = list(compared)
    names = [*_SHOWN, *_SPECULATING]
    return [name for name in names if any(name in entry.row.measured for entry in compared)] or [_SHOWN[0]]


def _name(entry: Compared) -> str:
    row = entry.row
    line = row.where.rsplit(":", 1)[-1] if ":" in row.where else ""
    if row.setting is None:
        return f"{line} not simulated".strip()
    setting = row.setting
    gpu, _, _ = setting.gpu.partition("-")
    return f"{line} {setting.model} tp{setting.tensor_parallel} {gpu} {row.load}".strip()


def _cell(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return "-"
    measured, predicted = pair
    percent = f"{100 * (predicted / measured - 1):+.1f}" if measured > 0 else ""
    difference = predicted - measured
    return f"{percent} ({difference:+,.0f})" if abs(difference) >= 1000 else f"{percent} ({difference:+.3g})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _metrics_table(groups: Groups) -> Table:
    """The errors over all rows, and of first stages apart: a line a metric."""
    table = numbers_table("errors over rows", _HEADINGS, width=50)
    for group in (ALL, FIRST_STAGES):
        for name, found in groups.get(group, {}).items():
            cells = [_short(found[key]) if key in found else "-" for key in _STATISTICS]
            table.add_row(name if group == ALL else f"first stages: {name}", *cells)
    return table


def _groups_table(groups: Groups) -> Table:
    """Median errors by group: a line a group, a column a metric."""
    names = [name for name in (*_SHOWN, *_SPECULATING) if any(name in metrics for metrics in groups.values())]
    headings = [name.removesuffix("_ms").replace("_", " ") for name in names]
    table = numbers_table("median error by group, %", headings, width=50)
    for group, metrics in groups.items():
        if group not in (ALL, FIRST_STAGES):
            cells = [_short(metrics[name]["median_ape"]) if name in metrics else "-" for name in names]
            table.add_row(group, *cells)
    return table


def document(compared: Sequence[Compared]) -> dict[str, Any]:
    """The errors by group; and, if there are rows of speculative decoding, what they say together as `speculation`."""
    found = verdict(compared)
    return summed_up(compared) | ({"speculation": found} if found else {})


def write_report(compared: Sequence[Compared], folder: Path) -> list[Path]:
    """Write the three files into `folder`, which is made; the paths of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "validation.csv": _csv(compared).encode(),
        "validation.json": (json.dumps(document(compared), indent=1) + "\n").encode(),
        "validation.png": _picture(compared),
    }
    paths = []
    for name, content in contents.items():
        path = folder / name
        partial = path.with_name(f".{name}.part")
        partial.write_bytes(content)
        partial.replace(path)
        paths.append(path)
    return paths


def _csv(compared: Sequence[Compared]) -> str:
    """A row a measured row: what it was, each metric measured and predicted side by side, and what was made of it."""
    metrics = list(dict.fromkeys(name for entry in compared for name in entry.row.measured))
    labels = list(dict.fromkeys(name for entry in compared for name in entry.row.labels))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    sides = [f"{name}_{side}" for name in metrics for side in ("measured", "predicted")]
    facts = ["row", *labels, "load", "stage", "overloaded_measured", "overloaded_predicted", "left_out", "assumed"]
    if any(entry.row.given for entry in compared):
        facts.append("given")
    writer.writerow([*facts, *sides])
    for entry in compared:
        row, predicted = entry.row, entry.predicted
        found: list[Any] = [row.where, *(row.labels.get(name, "") for name in labels), row.load, row.stage]
        found += [row.overloaded, "" if predicted is None else predicted.overloaded]
        found += [entry.left_out, "; ".join(row.assumptions)]
        if "given" in facts:
            found.append("; ".join(row.given))
        for name in metrics:
            found.append(_digits(row.measured.get(name)))
            found.append(_digits(None if predicted is None else predicted.metrics.get(name)))
        writer.writerow(found)
    return text.getvalue()


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _picture(compared: Sequence[Compared]) -> bytes:
    """Predicted against measured, one panel a metric, both axes logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    judged = [entry for entry in compared if not entry.left_out]
    names = _shown(judged)
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.2 * columns, 4.0 * lines), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
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
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


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
    panel.set(xlabel="measured", ylabel="predicted", title=f"{name} (band: 10%)")
