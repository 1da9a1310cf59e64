"""Tables of rows of speculative decoding: each with and without drafts, and their joint findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from simulator.common.console import Screen, numbers_table
from simulator.validation.errors import Compared

#: By metric of a row: its heading in a table, the metric of the run without speculation, and the speed-up of the two.
_METRICS = {
    "tpot_mean_ms": ("TPOT, ms", "plain_tpot_mean_ms", "tpot_speed_up"),
    "output_tok_s": ("output/s", "plain_output_tok_s", "output_speed_up"),
    "acceptance_length": ("length", "", "tpot_speed_up"),
    "tpot_speed_up": ("speed-up", "", ""),
}
_COLUMNS = ("metric", "measured", "predicted", "%", "plain", "predicted", "%", "speed-up", "predicted", "%")


def is_of_speculation(entry: Compared) -> bool:
    """Return whether the row is of a file on speculative decoding, in which each row has a method."""
    return "method" in entry.row.labels


def rows_table(compared: Iterable[Compared]) -> Table:
    """Return a table with a line for each row: its metric, that of the run without speculation, and the speed-up.
    Errors of given metrics are in parentheses."""
    table = numbers_table("with speculation, without, and the ratio", _COLUMNS, width=58)
    for entry in compared:
        pairs = {name: (measured, predicted) for name, measured, predicted in entry.pairs()}
        metric = next((name for name in _METRICS if name in entry.row.measured), None)
        if metric is None:
            table.add_row(_name(entry), *[""] * len(_COLUMNS), style="dim")
            continue
        title, plain, ratio = _METRICS[metric]
        cells = [title]
        for name in (metric, plain, ratio):
            cells += _cells(entry, name, pairs.get(name))
        table.add_row(_name(entry), *cells, style="dim" if entry.left_out else "")
    return table


def _cells(entry: Compared, name: str, pair: tuple[float, float] | None) -> list[str]:
    if pair is None:
        measured = entry.row.measured.get(name)
        return ["" if measured is None else f"{measured:.4g}", "", ""]
    error = f"{100 * (pair[1] / pair[0] - 1):+.1f}"
    return [f"{pair[0]:.4g}", f"{pair[1]:.4g}", f"({error})" if name in entry.row.given else error]


def _name(entry: Compared) -> str:
    line, setting = entry.row.where.rsplit(":", 1)[-1], entry.row.setting
    if setting is None:
        return f"{line} not simulated"
    gpu, _, _ = setting.gpu.partition("-")
    drafts = "plain"
    if setting.speculation is not None:
        drafts = f"{setting.speculation.TAG} k={setting.speculation.num_speculative_tokens}"
    return f"{line} {setting.model} tp{setting.tensor_parallel} {gpu} {entry.row.load} {drafts}"


def print_verdict(console: Screen, found: Mapping[str, Any]) -> None:
    """Print the findings of `verdict`; nothing if there are none."""
    if not found:
        return
    if found["best_drafts"]:
        console.print(_best_table(found["best_drafts"]))
        console.print()
    sign, order = found["sign"], found["order"]
    console.print(
        f"faster or slower with speculation: as measured in {sign['same_sign']} of {sign['rows']} rows; about "
        f"equal in {sign['predicted_about_equal']} of {sign['about_equal']}"
    )
    for name, counts in order.items():
        if counts["pairs"]:
            same, pairs = counts["same_order"], counts["pairs"]
            console.print(f"order of {name}: as measured in {same} of {pairs} pairs of rows")


def _best_table(best: Sequence[Mapping[str, Any]]) -> Table:
    table = numbers_table("fastest number of drafts", ("measured", "predicted", "costs %"), width=110)
    for one in best:
        table.add_row(one["series"], str(one["measured"]), str(one["predicted"]), f"{100 * one['loss']:.1f}")
    return table
