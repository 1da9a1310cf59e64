"""The CSV of kernel timings: its columns, the columns of each operator, and the valid values of a cell.

`python -m cost_models.profile_kernels` writes it and `servesim calibrate --source FILE` reads it. A row is one call of
one kernel on one GPU. Cells that do not apply to the row's operator are empty. Counts of heads, widths and sizes are
those of one GPU, after tensor parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cost_models.errors import CostModelError, unknown

Cell = int | float | str

COLUMNS = (
    "gpu",
    "operator",
    "dtype",
    "kv_dtype",
    "m",
    "n",
    "k",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "window",
    "tokens",
    "context",
    "hidden",
    "width",
    "experts",
    "top_k",
    "gpus",
    "bytes",
    "name",
    "latency_us",
    "source",
)

#: Columns of every row: the GPU, the operator, the time of one call in microseconds, and the kernel.
COMMON = ("gpu", "operator", "latency_us", "source")

#: What the rows of an operator have beside these.
#:
#: gemm: [m, k] times [k, n]; `dtype` is that of both.
#: prefill_attention: `batch` sequences of `tokens` new tokens and `context` earlier ones each; causal; `window` keys
#:   at most are seen by a token, 0 for all of them.
#: decode_attention: one query token for each of `batch` sequences of `context` keys, its own included.
#: elementwise: `hidden` numbers for each of `tokens` tokens; `bytes` read and written a call.
#: moe: `tokens` tokens of `hidden` numbers through `top_k` of `experts` gated experts of `width`, routing excluded.
#: all_reduce: a BF16 message of `bytes` over `gpus` GPUs.
#: p2p: a copy of `bytes` from one GPU to another.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "prefill_attention": ("kv_dtype", "batch", "heads", "kv_heads", "head_dim", "window", "tokens", "context"),
    "decode_attention": ("kv_dtype", "batch", "heads", "kv_heads", "head_dim", "context"),
    "elementwise": ("name", "tokens", "hidden", "bytes"),
    "moe": ("dtype", "tokens", "hidden", "width", "experts", "top_k"),
    "all_reduce": ("gpus", "bytes"),
    "p2p": ("bytes",),
}

#: The values of the columns that hold one of a few words.
WORDS: Mapping[str, tuple[str, ...]] = {
    "operator": tuple(REQUIRED),
    "dtype": ("bf16", "fp8", "int8"),
    "kv_dtype": ("bf16", "fp8"),
    "name": ("norm", "rope", "activation", "embedding", "sampling"),
}

_TEXTS = ("gpu", "source")
#: The least value of a count, if it is not 1.
_LEAST = {("prefill_attention", "window"): 0, ("prefill_attention", "context"): 0, ("all_reduce", "gpus"): 2}
#: Pairs of columns of which the first must not exceed the second.
_AT_MOST = (("kv_heads", "heads"), ("top_k", "experts"))


def check_header(columns: Sequence[str], where: str) -> None:
    """Verify the header of the file `where`.

    Columns may be in any order, and those of absent operators may be missing. Raises CostModelError for an unknown
    column, for a repeated one, and for a missing one that every row needs.
    """
    for index, column in enumerate(columns):
        if column not in COLUMNS:
            raise CostModelError(f"{where}: {unknown('column', column, COLUMNS)}")
        if column in columns[:index]:
            raise CostModelError(f"{where}: column {column} is given twice; remove one")
    for column in COMMON:
        if column not in columns:
            raise CostModelError(f"{where}: column {column} is missing; every row needs it")


def parse_row(cells: Mapping[str, str], where: str) -> dict[str, Cell]:
    """Return the values of one row, by column: text, int, and float for `latency_us`. Empty cells are left out.

    `where` is the place in errors. Raises CostModelError for a value that is missing, malformed, out of range or in a
    column that does not apply.
    """
    filled = {column: text.strip() for column, text in cells.items() if text.strip()}
    operator = filled.get("operator", "")
    if operator not in REQUIRED:
        raise CostModelError(f"{where}: {unknown('operator', operator, REQUIRED)}")
    needed = (*COMMON, *REQUIRED[operator])
    for column in needed:
        if column not in filled:
            raise CostModelError(f"{where}: {column}: missing; {operator} needs {', '.join(needed)}")
    for column in filled:
        if column not in needed:
            raise CostModelError(f"{where}: {column}: does not apply to {operator}; leave it empty")
    row = {column: _parse(operator, column, filled[column], where) for column in needed}
    _check_pairs(row, where)
    return row


def format_row(row: Mapping[str, Cell]) -> dict[str, str]:
    """Return the cells of a row as `parse_row` reads them, latencies to the nanosecond.

    Raises CostModelError as `parse_row` does.
    """
    cells = {column: f"{cell:.3f}" if isinstance(cell, float) else str(cell) for column, cell in row.items()}
    parse_row(cells, "measurement")
    return cells


def _parse(operator: str, column: str, text: str, where: str) -> Cell:
    if column in _TEXTS:
        return text
    if column in WORDS:
        if text not in WORDS[column]:
            raise CostModelError(f"{where}: {column}: {unknown('value', text, WORDS[column])}")
        return text
    if column == "latency_us":
        return _latency(text, where)
    least = _LEAST.get((operator, column), 1)
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise CostModelError(f"{where}: {column}: expected an integer of at least {least}, found {text!r}")
    return int(text)


def _latency(text: str, where: str) -> float:
    try:
        latency = float(text)
    except ValueError:
        latency = math.nan
    if not (0 < latency < math.inf):
        raise CostModelError(f"{where}: latency_us: expected microseconds above 0, found {text!r}")
    return latency


def _check_pairs(row: Mapping[str, Cell], where: str) -> None:
    for low, high in _AT_MOST:
        if low in row and int(row[low]) > int(row[high]):
            raise CostModelError(f"{where}: {low}: {row[low]} is more than the {row[high]} {high}")
    if "kv_heads" in row and int(row["heads"]) % int(row["kv_heads"]):
        raise CostModelError(f"{where}: kv_heads: {row['kv_heads']} does not divide the {row['heads']} heads")
