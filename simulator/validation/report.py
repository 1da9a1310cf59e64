"""Report of a validation: printed tables, and the files `validation.csv`, `validation.json` and `validation.png`."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from simulator.common.console import Screen, numbers_table
from simulator.errors import InputError
from simulator.validation.descriptions import engine_lines, load_facts, load_line
from simulator.validation.errors import (
    ALL,
    FIRST_STAGES,
    Compared,
    named_groups,
    overload_counts,
    summed_up,
)
from simulator.validation.picture import picture
from simulator.validation.rows_report import FEW, SHOWN, plain_name, row_tables
from simulator.validation.speculation.report import is_of_speculation, print_verdict, rows_table
from simulator.validation.speculation.verdict import verdict

#: Metrics that rows of speculative decoding have beside the usual ones.
_SPECULATING = (
    "plain_tpot_mean_ms",
    "tpot_speed_up",
    "plain_output_tok_s",
    "output_speed_up",
    "acceptance_length",
)
Groups = dict[str, dict[str, dict[str, Any]]]
#: Columns of output that does not go to a terminal.
_WIDTH = 150
_STATISTICS = ("n", "median_ape", "mean_ape", "p90_ape", "bias", "median_abs", "p90_abs")
_HEADINGS = ("rows", "median %", "mean %", "p90 %", "bias %", "median", "p90", "unit")


def print_report(compared: Sequence[Compared], stream: TextIO | None = None, every_row: bool = True) -> None:
    """Print the rows, the errors by group, the simulated engines and loads, and the rows left out with reasons.

    Without `every_row` the tables of rows are left out, except that of speculative decoding.
    """
    console = Screen(stream, width=_WIDTH)
    for table in _tables(compared, every_row):
        console.print(table)
        console.print()
    counts = overload_counts(compared)
    if len(compared) > 1 or counts["overloaded"] or counts["wrongly_predicted_to_overload"]:
        console.print(
            f"overload: {counts['predicted_to_overload']} of {counts['overloaded']} overloaded rows predicted to "
            f"overload; {counts['wrongly_predicted_to_overload']} of {counts['not_overloaded']} others"
        )
    print_verdict(console, verdict(compared))
    for engine, count in engine_lines(compared).items():
        console.print(Text(f"simulated, {_rows(count)}: {engine}"))
    if len(compared) <= FEW:
        for entry in compared:
            if entry.predicted is not None:
                console.print(Text(f"sent: {load_line(entry.row)}"))
    for title, texts in _remarks(compared):
        for text, count in Counter(texts).items():
            console.print(Text(f"{title}, {_rows(count)}: {text}", style="yellow"))


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"


def _remarks(compared: Sequence[Compared]) -> Iterator[tuple[str, list[str]]]:
    """Yield remarks on the tables: a title, and the texts of all rows."""
    predicted = [entry for entry in compared if entry.predicted is not None]
    yield "left out of the errors", [entry.left_out for entry in compared if entry.left_out]
    yield "given, not predicted", [", ".join(entry.row.given) for entry in compared if entry.row.given]
    yield "assumed", [text for entry in predicted for text in entry.row.assumptions]
    yield "measured, not predicted", [plain_name(name) for entry in predicted for name in _unpredicted(entry)]


def _unpredicted(entry: Compared) -> list[str]:
    known = {name for name, _, _ in entry.pairs()}
    return [name for name in entry.row.measured if name not in known]


def _tables(compared: Sequence[Compared], every_row: bool) -> Iterator[Table]:
    groups = summed_up(compared)
    speculating = [entry for entry in compared if is_of_speculation(entry)]
    others = [entry for entry in compared if not is_of_speculation(entry)]
    if others and every_row:
        yield from row_tables(others)
    if speculating:
        yield rows_table(speculating)
    if len(compared) == 1:
        return
    yield _errors_table("errors over rows", _over_all(groups))
    named = [group for group in named_groups(compared) if group in groups]
    if named:
        yield _errors_table("errors by group", _lines(groups, [(f"{group}: ", group) for group in named]))
    yield _medians_table({group: of for group, of in groups.items() if group not in (ALL, FIRST_STAGES, *named)})


def _over_all(groups: Groups) -> dict[str, dict[str, Any]]:
    """Return the errors over all rows, and separately of first stages, by the name of a line."""
    return _lines(groups, [("", ALL), ("first stages: ", FIRST_STAGES)])


def _lines(groups: Groups, named: Sequence[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    return {
        f"{title}{plain_name(name)}": found for title, group in named for name, found in groups.get(group, {}).items()
    }


def _errors_table(title: str, lines: dict[str, dict[str, Any]]) -> Table:
    table = numbers_table(title, _HEADINGS, width=70)
    for name, found in lines.items():
        table.add_row(name, *(_short(found[key]) for key in _STATISTICS), found["unit"])
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _medians_table(groups: Groups) -> Table:
    """Return the table of median errors by group: a line for each group, a column for each metric."""
    names = [name for name in (*SHOWN, *_SPECULATING) if any(name in metrics for metrics in groups.values())]
    table = numbers_table("median error by group, %", [plain_name(name) for name in names], width=50)
    for group, metrics in groups.items():
        cells = [_short(metrics[name]["median_ape"]) if name in metrics else "-" for name in names]
        table.add_row(group, *cells)
    return table


def document(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return errors by group, counts of overload, findings of rows of speculative decoding if any, and every row."""
    found = verdict(compared)
    return {
        "errors": summed_up(compared),
        "overload": overload_counts(compared),
        **({"speculation": found} if found else {}),
        "rows": [_row_document(entry) for entry in compared],
    }


def _row_document(entry: Compared) -> dict[str, Any]:
    """Return a row: its labels, the simulated engine and load, the assumptions, and metrics, measured and predicted."""
    row, predicted = entry.row, entry.predicted
    values = {name: value for name, _, value in entry.pairs()}
    return {
        "row": row.where,
        **row.labels,
        "stage": row.stage if row.staged else None,
        "engine": {} if predicted is None else predicted.engine,
        "load": {} if row.setting is None else load_facts(row.setting),
        "assumed": list(row.assumptions),
        "left_out": entry.left_out,
        "given": list(row.given),
        "overloaded": {"measured": row.overloaded, "predicted": None if predicted is None else predicted.overloaded},
        "metrics": {name: _metric(measured, values.get(name)) for name, measured in row.measured.items()},
    }


def _metric(measured: float, predicted: float | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {"measured": measured, "predicted": predicted}
    if predicted is not None:
        found["error"] = predicted - measured
        found["error_percent"] = 100 * (predicted / measured - 1) if measured > 0 else None
    return found


def check_folder(folder: Path) -> None:
    """Raise InputError if the files of a report cannot be written to `folder`, which need not exist yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"--out {folder}: {there} exists and is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder}: cannot write to {there}")


def write_report(compared: Sequence[Compared], folder: Path) -> list[Path]:
    """Write the three files into `folder`, which is created if missing, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "validation.csv": _csv(compared).encode(),
        "validation.json": (json.dumps(document(compared), indent=1) + "\n").encode(),
        "validation.png": picture(compared, _SPECULATING),
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
    """Return a CSV with a line for each measured row: its labels and remarks, and metrics, measured and predicted."""
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
