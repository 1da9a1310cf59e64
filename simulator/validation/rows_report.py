"""Tables of measured rows: measurements, predictions and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from simulator.common.console import numbers_table, short
from simulator.validation.errors import Compared, unit_of

#: Metrics of tables and pictures, if the rows have them. Rows of speculative decoding have further ones, and a table
#: of their own.
SHOWN = ("ttft_mean_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_mean_ms", "tpot_mean_ms", "tpot_p50_ms", "e2e_mean_ms")
_INITIALS = ("ttft", "itl", "tpot", "e2e")
#: Most metrics in one table, so that it fits a line of 150 columns.
_A_TABLE = 3
#: Up to this number of rows, each has its own table, with all its metrics.
FEW = 3


def shown(compared: Iterable[Compared], more: Sequence[str] = ()) -> list[str]:
    """Return the metrics of `SHOWN` and `more` that the rows have; the first if there is none."""
    compared = list(compared)
    return [name for name in (*SHOWN, *more) if any(name in entry.row.measured for entry in compared)] or [SHOWN[0]]


def row_tables(compared: Sequence[Compared]) -> Iterator[Table]:
    """Yield tables of the rows' values, measured and predicted: a table for each of a few rows, else a line each."""
    if len(compared) <= FEW:
        yield from (_one(entry) for entry in compared)
        return
    names = shown(compared)
    for first in range(0, len(names), _A_TABLE):
        yield _several(compared, names[first : first + _A_TABLE])


def name_of(entry: Compared) -> str:
    """Return the name of a row: its line in the file, the model, the GPUs and the load."""
    row = entry.row
    line = row.where.rsplit(":", 1)[-1] if ":" in row.where else ""
    if row.setting is None:
        return f"{line} not simulated".strip()
    setting = row.setting
    gpu, _, _ = setting.gpu.partition("-")
    return f"{line} {setting.model} tp{setting.tensor_parallel} {gpu} {row.load}".strip()


def sort_key(metric: str) -> tuple[int, ...]:
    """Return the sort key of a metric: times before rates, means before percentiles."""
    places = [_INITIALS, ("mean", "p50", "p90", "p95", "p99")]
    words = metric.split("_")
    return tuple(of.index(word) if word in of else len(of) for of, word in zip(places, words, strict=False))


def plain_name(metric: str) -> str:
    """Return the common name of a metric: `TTFT p99` for `ttft_p99_ms`."""
    text = metric.removesuffix("_ms").replace("speed_up", "speed-up")
    for name, called in (("output_tok_s", "output tokens"), ("total_tok_s", "all tokens"), ("req_per_s", "requests")):
        text = text.replace(name, called)
    return " ".join(word.upper() if word in _INITIALS else word for word in text.split("_"))


def _one(entry: Compared) -> Table:
    columns = ("unit", "measured", "predicted", "error", "error, %")
    table = numbers_table(name_of(entry), columns, width=60)
    predicted = {name: value for name, _, value in entry.pairs()}
    for name, measured in sorted(entry.row.measured.items(), key=lambda pair: sort_key(pair[0])):
        table.add_row(plain_name(name), unit_of(name), *_cells((measured, predicted.get(name))))
    return table


def _several(compared: Sequence[Compared], names: Sequence[str]) -> Table:
    headings = [text for name in names for text in (plain_name(name), "predicted", "error", "%")]
    table = numbers_table("measured and predicted, ms", headings, width=42)
    for entry in compared:
        predicted = {name: value for name, _, value in entry.pairs()}
        cells = [text for name in names for text in _cells((entry.row.measured.get(name), predicted.get(name)))]
        table.add_row(name_of(entry), *cells, style="dim" if entry.left_out else "")
    return table


def _cells(pair: tuple[float | None, float | None]) -> tuple[str, str, str, str]:
    """Return the cells of measured, predicted, the difference and its percentage; empty where a value is missing."""
    measured, predicted = pair
    if measured is None or predicted is None:
        return "" if measured is None else short(measured), "" if predicted is None else short(predicted), "", ""
    percent = f"{100 * (predicted / measured - 1):+.1f}" if measured > 0 else ""
    return short(measured), short(predicted), signed(predicted - measured), percent


def signed(value: float) -> str:
    """Return a difference with its sign and three digits."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.3g}"
