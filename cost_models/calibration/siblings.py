"""All collections of kernel timings of one GPU in aiconfigurator-core, with the columns of the collections in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cost_models.calibration.read_attention import (
    KV_LORA_RANK,
    LATENT,
    MLA_HEAD_DIM,
    MLA_V_HEAD_DIM,
    mla_decodes,
    mla_modules,
    mla_prefills,
    plain_decodes,
    plain_prefills,
)
from cost_models.calibration.read_communication import all_reduce_rows
from cost_models.calibration.read_gemm import gemm_rows
from cost_models.calibration.read_moe import deepep_rows, expert_rows, nccl_rows
from cost_models.kernels.contract import Kernels
from cost_models.roofline.operands import Floats

_GEMM = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "int8": "sq"}
_EXPERTS = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int4": "int4_wo",
    "mxfp4": "w4a16_mxfp4",
}
#: Hidden size and rank of the queries of DeepSeek-V3, whose MLA modules were measured.
_HIDDEN, _Q_LORA_RANK = 7168, 1536
#: The rest of a module without its projections is compared if it is at least this part of the module's time.
_ATTENTION_SHARE = 0.5


#: Ending of the places of whole modules.
MODULE = "module less projections"


class Collection(NamedTuple):
    """Measured calls of one operator: `group` is the format or implementation, `place` the folder below the GPU's."""

    operator: str
    group: str
    place: str
    rows: pd.DataFrame


def collections(place: Path, kernels: Kernels) -> Iterator[Collection]:
    """Yield every collection of the operators that are calibrated, in the GPU's folder `place`; repeated shapes are not
    merged.

    The projections, by `kernels`, are subtracted from whole MLA modules; calls that mainly consist of them are left
    out.
    """
    yield from _gemm(place)
    yield from _attention(place)
    yield from _modules(place, kernels)
    yield from _experts(place)
    yield from _all_reduce(place)
    yield from _all_to_all(place)


def _gemm(place: Path) -> Iterator[Collection]:
    for folder in _folders(place, "gemm", "gemm_perf"):
        for group, name in _GEMM.items():
            yield Collection("gemm", group, _below(place, folder), gemm_rows(folder, name))


def _attention(place: Path) -> Iterator[Collection]:
    """Yield attention by format, and with a window or not; MLA by format."""
    tables = (
        ("attention", "generation_attention_perf", "decode", plain_decodes),
        ("attention", "context_attention_perf", "prefill", plain_prefills),
        ("mla", "generation_mla_perf", "mla decode", mla_decodes),
        ("mla", "context_mla_perf", "mla prefill", mla_prefills),
    )
    for kind, file, name, read in tables:
        for folder in _folders(place, kind, file):
            for (kv_dtype, windowed), rows in (found := read(folder)).groupby(["kv_dtype", found["window"] > 0]):
                group = f"{name} {kv_dtype}{', windows' if windowed else ''}"
                yield Collection("attention", group, _below(place, folder), rows)


def _modules(place: Path, kernels: Kernels) -> Iterator[Collection]:
    for name, file in (("mla decode", "mla_generation_module_perf"), ("mla prefill", "mla_context_module_perf")):
        for folder in _folders(place, "mla", file):
            rows = mla_modules(folder / f"{file}.parquet", prefill="prefill" in name)
            rest = rows["latency_ns"].to_numpy(float) - _projections_ns(rows, kernels)
            kept = rows.assign(latency_ns=rest)[rest >= _ATTENTION_SHARE * rows["latency_ns"].to_numpy(float)]
            for kv_dtype, part in kept.groupby("kv_dtype"):
                yield Collection("attention", f"{name} {kv_dtype}", f"{_below(place, folder)} {MODULE}", part)


def _projections_ns(rows: pd.DataFrame, kernels: Kernels) -> Floats:
    """Return the time of the matrices around MLA, in ns.

    Those between latents and heads are absorbed in decodes, at the same FLOPs.
    """
    time, tokens = np.zeros(len(rows)), rows["batch"].to_numpy(float)
    if "tokens" in rows:
        tokens = tokens * rows["tokens"].to_numpy(float)
    for heads, mine in rows.groupby("heads").indices.items():
        count = int(heads)
        matrices = (
            (_HIDDEN, _Q_LORA_RANK),
            (_Q_LORA_RANK, count * MLA_HEAD_DIM),
            (_HIDDEN, LATENT),
            (KV_LORA_RANK, 2 * count * MLA_V_HEAD_DIM),
            (count * MLA_V_HEAD_DIM, _HIDDEN),
        )
        for inputs, columns in matrices:
            time[mine] += kernels.matrix_ns("bf16", inputs, columns, tokens[mine])
    return time


def _experts(place: Path) -> Iterator[Collection]:
    """Yield the experts of one GPU, which all engines measure alike."""
    for folder in _folders(place, "moe", "moe_perf"):
        data = pd.read_parquet(folder / "moe_perf.parquet")
        data = data[data["moe_ep_size"] == 1]
        for group, name in _EXPERTS.items():
            rows = expert_rows(data[data["moe_dtype"] == name], gated="sglang" in folder.parts)
            yield Collection("moe", group, _below(place, folder), rows)


def _all_reduce(place: Path) -> Iterator[Collection]:
    """Yield the all-reduces: custom kernels in CUDA graphs, or those of TensorRT-LLM, which has one way; NCCL."""
    for folder in _folders(place, "comm", "custom_allreduce_perf"):
        data = pd.read_parquet(folder / "custom_allreduce_perf.parquet")
        if "backend" in data:
            data = data[data["backend"].str.endswith("_graph")]
        yield Collection("all_reduce", "bf16", _below(place, folder), all_reduce_rows(data))
    for folder in _folders(place, "comm", "nccl_perf"):
        data = pd.read_parquet(folder / "nccl_perf.parquet")
        data = data[(data["op_name"] == "all_reduce") & (data["nccl_dtype"] == "half")]
        yield Collection("all_reduce", "bf16", _below(place, folder), all_reduce_rows(data))


def _all_to_all(place: Path) -> Iterator[Collection]:
    for folder in _folders(place, "comm", "moe_a2a_perf"):
        data = pd.read_parquet(folder / "moe_a2a_perf.parquet")
        data = data[data["comm_dtype"].isin(["default", "bfloat16"])]
        for backend, rows in data.groupby("comm_backend"):
            group = f"deepep_{str(backend).rpartition('_')[2]}"
            yield Collection("all_to_all", group, f"{_below(place, folder)} {backend}", deepep_rows(rows))
    for folder in _folders(place, "comm", "nccl_perf"):
        rows = nccl_rows(pd.read_parquet(folder / "nccl_perf.parquet"))
        yield Collection("all_to_all", "nccl", _below(place, folder), rows)


def _folders(place: Path, operator: str, file: str) -> list[Path]:
    return sorted(path.parent for path in place.glob(f"{operator}/*/*/{file}.parquet"))


def _below(place: Path, folder: Path) -> str:
    return folder.relative_to(place).as_posix()
