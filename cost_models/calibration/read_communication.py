"""Reader of the all-reduces of the `calibrate` extra, as rows of one form."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from cost_models.laws.communication import NCCL_BYTES
from cost_models.specs.dtypes import ACTIVATION_BYTES

#: (version of vLLM, of NCCL) of the collections of each GPU.
_SETS = {
    "a100_sxm": ("0.14.0", "2.27.3"),
    "h100_sxm": ("0.24.0", "2.29.2"),
    "h200_sxm": ("0.24.0", "2.29.2"),
}


def read_all_reduce(root: Path, gpu: str) -> dict[str, tuple[pd.DataFrame, str]]:
    """Return rows with the columns gpus, bytes, latency_ns under "bf16", with their source.

    Below `NCCL_BYTES` they are of vLLM's custom kernel in a CUDA graph, from there on of NCCL.

    Args:
        root: the folder `systems/data` of the package.
        gpu: the package's name, such as "h100_sxm"; the result is empty for a GPU without a collection.
    """
    if gpu not in _SETS:
        return {}
    vllm, nccl = _SETS[gpu]
    custom = pd.read_parquet(root / gpu / "comm" / "vllm" / vllm / "custom_allreduce_perf.parquet")
    custom = all_reduce_rows(custom[custom["backend"] == "vllm_graph"])
    large = pd.read_parquet(root / gpu / "comm" / "nccl" / nccl / "nccl_perf.parquet")
    large = all_reduce_rows(large[(large["op_name"] == "all_reduce") & (large["nccl_dtype"] == "half")])
    rows = pd.concat([custom[custom["bytes"] < NCCL_BYTES], large[large["bytes"] >= NCCL_BYTES]], ignore_index=True)
    source = f"aiconfigurator-core {gpu}/comm/vllm/{vllm} (graph) and {gpu}/comm/nccl/{nccl}"
    return {"bf16": (rows, source)}


def all_reduce_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the uniform columns of a table: `message_size` counts numbers of two bytes, `latency` is in
    milliseconds."""
    return pd.DataFrame(
        {
            "gpus": table["num_gpus"].astype(int),
            "bytes": table["message_size"].astype(int) * ACTIVATION_BYTES,
            "latency_ns": table["latency"] * 1e6,
        }
    )
