"""Reader of the matrix products of the `calibrate` extra, as rows of one form."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd


class _Set(NamedTuple):
    engine: str
    version: str
    dtype: str


#: One collection for each GPU and format. vLLM's fp8_block rows and TensorRT-LLM's FP8 rows are bound by the host;
#: "sq" is SmoothQuant, INT8 weights and activations.
_VLLM, _SGLANG = ("vllm", "0.24.0"), ("sglang", "0.5.14")
_HOPPER = {"bf16": _Set(*_VLLM, "bfloat16"), "fp8": _Set(*_SGLANG, "fp8"), "fp8_block": _Set(*_SGLANG, "fp8_block")}
_SETS: dict[str, dict[str, _Set]] = {
    "a100_sxm": {"bf16": _Set("sglang", "0.5.10", "bfloat16"), "int8": _Set("trtllm", "1.0.0", "sq")},
    "h100_sxm": _HOPPER,
    "h200_sxm": _HOPPER,
    "l40s": {"bf16": _Set(*_VLLM, "bfloat16"), "fp8": _Set(*_SGLANG, "fp8")},
}


def read_gemm(root: Path, gpu: str) -> dict[str, tuple[pd.DataFrame, str]]:
    """Return by format rows with the columns m, n, k, latency_ns, and their source.

    Args:
        root: the folder `systems/data` of the package.
        gpu: the package's name, such as "h100_sxm"; the result is empty for a GPU without a collection.
    """
    return {dtype: _read(root, gpu, chosen) for dtype, chosen in _SETS.get(gpu, {}).items()}


def taken_gemm(gpu: str) -> dict[str, str]:
    """Return by format the folder below the GPU's whose rows `read_gemm` uses."""
    return {dtype: f"gemm/{chosen.engine}/{chosen.version}" for dtype, chosen in _SETS.get(gpu, {}).items()}


def _read(root: Path, gpu: str, chosen: _Set) -> tuple[pd.DataFrame, str]:
    place = f"{gpu}/gemm/{chosen.engine}/{chosen.version}"
    return gemm_rows(root / place, chosen.dtype), f"aiconfigurator-core {place}, {chosen.dtype}"


def gemm_rows(folder: Path, dtype: str) -> pd.DataFrame:
    """Return the rows of a collection's folder in one format, by the package's name; columns as of `read_gemm`."""
    table = pd.read_parquet(folder / "gemm_perf.parquet", columns=["gemm_dtype", "m", "n", "k", "latency"])
    rows = table.loc[table["gemm_dtype"] == dtype, ["m", "n", "k"]].copy()
    rows["latency_ns"] = table.loc[rows.index, "latency"] * 1e6
    return rows.reset_index(drop=True)
