"""Measured mixtures of experts and their all-to-alls, from the parquet files of aiconfigurator-core.

Uniform columns of experts: tokens, hidden, width, experts, top_k, expert_parallel, distribution, matrices, model_width
(the width before tensor parallelism), latency_ns.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cost_models.errors import CostModelError


class _Group(NamedTuple):
    """Where the rows of one weight format lie: the name there, and the format of the weights in `dtypes.BITS`."""

    folder: str
    name: str
    dtype: str


_VLLM = {
    "bf16": _Group("moe/vllm/0.24.0", "bfloat16", "bf16"),
    "fp8": _Group("moe/vllm/0.24.0", "fp8", "fp8"),
    "fp8_block": _Group("moe/vllm/0.24.0", "fp8_block", "fp8"),
    "int4": _Group("moe/vllm/0.24.0", "int4_wo", "int4"),
    "mxfp4": _Group("moe/vllm/0.24.0", "w4a16_mxfp4", "mxfp4"),
}
_SGLANG = {
    "bf16": _Group("moe/sglang/0.5.10", "bfloat16", "bf16"),
    "int4": _Group("moe/sglang/0.5.10", "int4_wo", "int4"),
}
_GROUPS = {"h100_sxm": _VLLM, "h200_sxm": _VLLM, "l40s": _VLLM, "a100_sxm": _SGLANG}
#: Models whose experts have no gate, as (hidden, width, experts): Nemotron-H-style squared ReLU. vLLM's collection
#: measures them so (times fall below the bound of three matrices); sglang's gives every model a gate.
_WITHOUT_GATE = {(2048, 5120, 512), (2688, 1856, 128), (1024, 2688, 512)}


def read_experts(root: Path, gpu: str) -> dict[str, tuple[str, pd.DataFrame, str]]:
    """The measured experts of a GPU: for each group (bf16, fp8, fp8_block, int4, mxfp4 where there are data) the format
    of its weights, its rows, and a text about the source.

    Args:
        root: the folder `systems/data` of aiconfigurator_core.
        gpu: its name there, such as h100_sxm.

    sglang's rows with expert parallelism are left out: the local experts there get the pairs of all GPUs. Raises
    CostModelError for a GPU without a collection.
    """
    if gpu not in _GROUPS:
        raise CostModelError(f"no measured experts for {gpu}; known: {', '.join(_GROUPS)}")
    found = {}
    for key, group in _GROUPS[gpu].items():
        data = pd.read_parquet(root / gpu / group.folder / "moe_perf.parquet")
        rows = _experts(data[data["moe_dtype"] == group.name], gated="sglang" in group.folder)
        if "sglang" in group.folder:
            rows = rows[rows["expert_parallel"] == 1]
        kernels = ", ".join(sorted(data.loc[data["moe_dtype"] == group.name, "kernel_source"].astype(str).unique()))
        found[key] = (group.dtype, rows, f"aiconfigurator-core {gpu}/{group.folder} {group.name} ({kernels})")
    return found


def _experts(data: pd.DataFrame, gated: bool) -> pd.DataFrame:
    """The uniform columns; `gated`: all experts have a gate."""
    names = ("num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
    tokens, hidden, width, experts, top_k, tensor, expert = (data[name].to_numpy(np.int64) for name in names)
    kinds = zip(hidden.tolist(), width.tolist(), experts.tolist(), strict=True)
    return pd.DataFrame(
        {
            "tokens": tokens,
            "hidden": hidden,
            "width": width // tensor,
            "experts": experts,
            "top_k": top_k,
            "expert_parallel": expert,
            "distribution": data["distribution"].astype(str).to_numpy(),
            "matrices": [3 if gated or kind not in _WITHOUT_GATE else 2 for kind in kinds],
            "model_width": width,
            "latency_ns": data["latency"].to_numpy(float) * 1e6,
        }
    )
