"""The verbs `servesim list` and `servesim trace stats`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from simulator.cli.codes import EXIT_DONE
from simulator.common.stdin import located
from simulator.study.facts import KINDS, Row

#: The least width of the last column for it to be wrapped.
_NARROWEST = 20


class ListTable(NamedTuple):
    """A kind that can be listed: its description, and the columns of its table by heading, after the name."""

    description: str
    columns: dict[str, Callable[[Row], str]]


def print_list(arguments: argparse.Namespace) -> int:
    """Print the rows of one kind as a table with a heading, or the kinds."""
    if arguments.kind is None:
        kinds = [{"name": name, "description": listed.description} for name, listed in LISTS.items()]
        _print(arguments, kinds, "KIND", _DESCRIBED)
    else:
        _print(arguments, KINDS[arguments.kind](), "NAME", LISTS[arguments.kind].columns)
    return EXIT_DONE


def _print(
    arguments: argparse.Namespace,
    rows: Sequence[Row],
    first: str,
    columns: dict[str, Callable[[Row], str]],
) -> None:
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    table = [[first, *columns]]
    table += [[row["name"], *(shown(row) for shown in columns.values())] for row in rows]
    for line in _aligned(table):
        print(line)


def _aligned(table: list[list[str]]) -> list[str]:
    """Return lines with columns of equal width, numbers aligned to the right.

    On a terminal the last column is wrapped; elsewhere each row is one line.
    """
    placed = []
    for column in zip(*table, strict=True):
        width = max(map(len, column))
        figures = all(cell[:1].isdigit() or cell in ("-", "all") for cell in column[1:])
        placed.append([cell.rjust(width) if figures else cell.ljust(width) for cell in column])
    lines = ["  ".join(row).rstrip() for row in zip(*placed, strict=True)]
    before = sum(len(column[0]) + 2 for column in placed[:-1])
    if not sys.stdout.isatty():
        return lines
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    if width < before + _NARROWEST:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent=" " * before)]


def trace_stats(arguments: argparse.Namespace) -> int:
    """Print the statistics of traces."""
    from simulator.study.traces import print_trace_statistics, trace_statistics_of

    statistics = {located(name)[1]: trace_statistics_of(name, arguments.trace_format) for name in arguments.files}
    if arguments.json:
        print(json.dumps(statistics, indent=2))
    else:
        print_trace_statistics(statistics)
    return EXIT_DONE


def _peak(name: str) -> Callable[[Row], str]:
    def shown(row: Row) -> str:
        peak = row["peak_flops"].get(name)
        return "-" if peak is None else f"{peak / 1e12:,.0f}"

    return shown


def _kernels(row: Row) -> str:
    return row["kernels"] if row["calibrated_as"] in (None, row["name"]) else f"calibrated as {row['calibrated_as']}"


def _parameters(row: Row) -> str:
    return f"{row['parameters'] / 1e9:,.1f} B"


def _active(row: Row) -> str:
    same = row["active_parameters"] == row["parameters"]
    return "all" if same else f"{row['active_parameters'] / 1e9:,.1f} B"


_DESCRIBED: dict[str, Callable[[Row], Any]] = {"DESCRIPTION": lambda row: row["description"]}

#: The lists by kind.
LISTS: dict[str, ListTable] = {
    "gpus": ListTable(
        "GPUs, for deployment.pools.NAME.gpu",
        {
            "MEMORY": lambda row: f"{row['memory_bytes'] / 2**30:.0f} GiB",
            "BANDWIDTH": lambda row: f"{row['bandwidth_bytes_per_s'] / 1e12:.2f} TB/s",
            "BF16 TFLOP/S": _peak("bf16"),
            "FP8": _peak("fp8"),
            "INT8": _peak("int8"),
            "KERNELS": _kernels,
            "ALSO CALLED": lambda row: ", ".join(row["aliases"]),
        },
    ),
    "models": ListTable(
        "models, for model",
        {
            "PARAMETERS": _parameters,
            "ACTIVE": _active,
            "CONTEXT": lambda row: f"{row['max_position']:,}",
            "KV A TOKEN": lambda row: f"{row['kv_bytes_per_token'] / 1024:,.4g} KiB",
            "WEIGHTS": lambda row: row["weights"],
        },
    ),
    "hosts": ListTable("host models, for cost_model.host", _DESCRIBED),
    "schedulers": ListTable("batch policies, for scheduler.policy", _DESCRIBED),
    "routers": ListTable("routers, for router.policy", _DESCRIBED),
    "proposers": ListTable("draft proposers, for speculation.method", _DESCRIBED),
    "acceptance": ListTable(
        "measured acceptance of drafts, for speculation.acceptance",
        {
            "DEPTH": lambda row: str(row["depth"]),
            "LENGTH": lambda row: f"{row['acceptance_length']:.2f}",
            "MODEL": lambda row: row["model"],
            "DATASET": lambda row: row["dataset"],
        },
    ),
    "formats": ListTable(
        "formats of traces, for --trace-format",
        _DESCRIBED | {"REQUIRED COLUMNS": lambda row: ", ".join(row["columns"])},
    ),
    "scenarios": ListTable("shipped scenarios, for run and compare", _DESCRIBED),
}
