"""Reader of kernel timings from CSV files, as rows of one form, by operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pandas as pd

from cost_models.calibration.schema import check_header, parse_row
from cost_models.errors import CostModelError
from cost_models.files.documents import csv_rows
from cost_models.library import load_model
from cost_models.specs.dtypes import ACTIVATION_BYTES

Row = Mapping[str, int | float | str]

#: The operator of rows that measured only chunks on earlier context, with kernels called alone: their launch differs
#: from that of whole prompts.
CHUNKS = "chunked_prefill"

_ELEMENTWISE = ("gpu", "model", "op", "tokens", "tp", "hidden", "ffn", "latency_ms")
_CHUNKS = ("gpu", "model", "heads", "kv_heads", "head_dim", "chunk_tokens", "prior_context_tokens", "latency_ms")
_P2P = ("gpu", "rank", "num_workers", "size", "devices_per_node", "latency_ms")


def read_measurements(path: Path, gpu_names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """Return by operator the rows of the GPU that has these names: the columns of `schema`, and `latency_ns`.

    Four kinds of files are recognised by their headers: that of `schema`; elementwise kernels by model and
    tensor-parallel size (`gpu,model,op,tokens,tp,hidden,ffn,latency_ms`); chunks of prompts on earlier context
    (`gpu,model,heads,kv_heads,head_dim,chunk_tokens,prior_context_tokens,latency_ms`); and copies between GPUs
    (`gpu,rank,num_workers,size,devices_per_node,latency_ms`).

    Raises InputError, with file, line and column, for cells that cannot be read, and if no row is of this GPU.
    """
    parse: Callable[[Mapping[str, str], str], Row] | None = None
    rows = []
    for number, cells in _lines(path):
        parse = parse or _parser(tuple(cells), str(path))
        rows.append(parse(cells, f"{path}:{number}"))
    wanted = {name.lower() for name in gpu_names}
    mine = [row for row in rows if str(row["gpu"]).lower() in wanted]
    if not mine:
        found = ", ".join(sorted({str(row["gpu"]) for row in rows})) or "no rows"
        raise CostModelError(f"{path}: no rows of {' or '.join(sorted(wanted))}; the file has {found}")
    table = pd.DataFrame(mine)
    return {str(name): group.dropna(axis=1, how="all") for name, group in table.groupby("operator")}


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each line after the header, and its cells by column."""
    rows = csv_rows(path)
    _, header = next(rows, (1, []))
    for number, cells in rows:
        if len(cells) != len(header):
            raise CostModelError(f"{path}:{number}: {len(cells)} cells, expected {len(header)}")
        yield number, dict(zip(header, cells, strict=True))


def _parser(header: tuple[str, ...], where: str) -> Callable[[Mapping[str, str], str], Row]:
    if header == _ELEMENTWISE:
        return _elementwise_row
    if header == _P2P:
        return _p2p_row
    if header == _CHUNKS:
        return _chunk_row
    check_header(header, where)
    return _own_row


def _own_row(cells: Mapping[str, str], where: str) -> Row:
    row = parse_row(cells, where)
    return {**row, "latency_ns": 1000 * float(row["latency_us"])}


def _elementwise_row(cells: Mapping[str, str], where: str) -> Row:
    tokens, tp = (_number(cells, column, where) for column in ("tokens", "tp"))
    return {
        "gpu": cells["gpu"],
        "operator": "elementwise",
        "name": cells["op"],
        "tokens": tokens,
        "bytes": tokens * _bytes_a_token(cells, tp, where),
        "latency_ns": 1e6 * _number(cells, "latency_ms", where),
        "source": "elementwise kernels timed alone",
    }


def _bytes_a_token(cells: Mapping[str, str], tp: float, where: str) -> float:
    """Return the bytes that a kernel reads and writes for a token: streams of activations of a GPU.

    An addition has two inputs; norms and the embedding copy the hidden state; RoPE reads and writes the rotated queries
    and keys; the activation reads the gate and the other half of the FFN.
    """
    hidden, ffn = _number(cells, "hidden", where), _number(cells, "ffn", where)
    operator = cells["op"]
    if operator == "attn_rope":
        model = load_model(cells["model"])
        numbers = 2 * (model.heads + model.kv_heads) * model.head_dim / tp
    else:
        streams = {
            "add": 3 * hidden,
            "emb": 2 * hidden,
            "input_layernorm": 2 * hidden,
            "post_attention_layernorm": 2 * hidden,
            "mlp_act": 3 * ffn / tp,
        }
        if operator not in streams:
            known = ", ".join(sorted([*streams, "attn_rope"]))
            raise CostModelError(f"{where}: op: unknown {operator!r}; known: {known}")
        numbers = streams[operator]
    return ACTIVATION_BYTES * numbers


def _chunk_row(cells: Mapping[str, str], where: str) -> Row:
    """Return one chunk; `prior_context_tokens` may be 0."""
    earlier = 0.0 if cells["prior_context_tokens"] == "0" else _number(cells, "prior_context_tokens", where)
    return {
        "gpu": cells["gpu"],
        "operator": CHUNKS,
        "kv_dtype": "bf16",
        "batch": 1,
        **{name: _number(cells, name, where) for name in ("heads", "kv_heads", "head_dim")},
        "window": 0,
        "tokens": _number(cells, "chunk_tokens", where),
        "context": earlier,
        "latency_ns": 1e6 * _number(cells, "latency_ms", where),
        "source": "chunks of prompts on earlier context",
    }


def _p2p_row(cells: Mapping[str, str], where: str) -> Row:
    """Return a copy between two workers: within a node if it has both devices, else over the network."""
    return {
        "gpu": cells["gpu"],
        "operator": "p2p",
        "link": "network" if _number(cells, "devices_per_node", where) == 1 else "node",
        "bytes": _number(cells, "size", where),
        "latency_ns": 1e6 * _number(cells, "latency_ms", where),
        "source": "copies between two GPUs",
    }


def _number(cells: Mapping[str, str], column: str, where: str) -> float:
    try:
        number = float(cells[column])
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise CostModelError(f"{where}: {column}: expected a number above 0, found {cells[column]!r}")
    return number
