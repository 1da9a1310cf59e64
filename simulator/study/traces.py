"""Statistics of traces, for `servesim trace stats`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.common.shipped import file_finder
from simulator.errors import InputError, did_you_mean
from simulator.scenario.traffic import Workload
from simulator.workload import RequestTable, load_requests
from simulator.workload.formats import FORMATS, detect
from simulator.workload.stats import trace_statistics

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


def trace_frame(name: str, trace_format: str = "auto") -> pd.DataFrame:
    """Return the requests of one trace file, one row per request in order of arrival.

    Columns: `arrival_s`, the lengths, the class by name, and the file's further columns.

    Raises:
        InputError: as `trace_statistics_of`.
    """
    import pandas as pd

    table = _read(name, trace_format)
    columns: dict[str, Any] = {
        "arrival_s": table.arrival_ns / 1e9,
        "prompt_tokens": table.prompt_tokens,
        "output_tokens": table.output_tokens,
        "max_tokens": table.max_tokens,
        "class_name": pd.Categorical.from_codes(table.class_id, table.class_names),
    }
    return pd.DataFrame(columns | table.extras, index=None if table.ids is None else pd.Index(table.ids, name="id"))


def trace_statistics_of(name: str, trace_format: str = "auto") -> dict[str, Any]:
    """Return the statistics of one trace file as plain values, with its format.

    Raises:
        InputError: the file or the format is not known, or the file has a mistake in it.
    """
    table = _read(name, trace_format)
    read_as = detect(file_finder(None)(name)) if trace_format == "auto" else trace_format
    notes = [{"code": note.code, "text": note.text} for note in table.notes]
    return {"format": read_as, **dataclasses.asdict(trace_statistics(table)), "notes": notes}


def _read(name: str, trace_format: str) -> RequestTable:
    if trace_format != "auto" and trace_format not in FORMATS:
        raise InputError(f"--trace-format: {trace_format!r} is not known{did_you_mean(trace_format, FORMATS)}")
    workload = Workload(trace=name, trace_format=trace_format)  # type: ignore[arg-type]
    return load_requests(
        workload, 0, file_finder(None), frozenset({"prefix_id"})
    )  # without a scheduler, whose prefix caching could be off


def print_trace_statistics(statistics: dict[str, dict[str, Any]]) -> None:
    """Print one column per trace: side by side in a pipe, and on a terminal as many as fit, with the others below."""
    from simulator.common.console import Screen

    first = max(len(label) for label, *_ in _ROWS) + _BORDERS
    console = Screen(width=max(_NARROWEST, first + len(statistics) * (_WIDEST_FIGURE + _BORDERS) + 1))
    columns = list(zip(_headings(list(statistics)), statistics.values(), strict=True))
    room = max(1, (console.width - first - 1) // (_WIDEST_FIGURE + _BORDERS))
    for at in range(0, len(columns), room):
        console.print(_table(columns[at : at + room]))
    for name, values in statistics.items():
        for note in values["notes"]:
            console.print(f"{name}: {note['text']}", markup=False)


def _table(columns: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Trace statistics", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading, _ in columns:
        table.add_column(Text(heading), overflow="fold", min_width=_WIDEST_FIGURE)
    for label, *path in _ROWS:
        table.add_row(label, *(_shown(_at(values, path)) for _, values in columns))
    return table


def _headings(files: list[str]) -> list[str]:
    """Return the names of the files without folders if these are distinct."""
    names = [Path(file).name for file in files]
    return names if len(set(names)) == len(names) else files


_WIDEST_FIGURE = len("1,000,000")
#: The width of a column's border: a line and two blanks.
_BORDERS = 3
#: The least width of output that is not a terminal.
_NARROWEST = 80
_LENGTHS = [
    (f"{title}, {name}", f"{title}_tokens", name)
    for title in ("prompt", "output")
    for name in ("mean", "p50", "p90", "p99")
]
_ROWS: list[tuple[str, ...]] = [
    ("format", "format"),
    ("requests", "requests"),
    ("duration, s", "duration_s"),
    ("rate, 1/s", "rate_per_s"),
    ("CV of gaps", "gap_cv"),
    ("most in one second", "max_per_second"),
    ("share at the same instant", "shared_arrivals"),
    *_LENGTHS[:4],
    ("prompt, max", "prompt_tokens", "max"),
    *_LENGTHS[4:],
    ("output, max", "output_tokens", "max"),
    ("correlation of lengths", "length_correlation"),
]


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
