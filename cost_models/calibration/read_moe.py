"""Reader of measured mixtures of experts and their all-to-alls, from the parquet files of aiconfigurator-core.

Uniform columns of experts: tokens, hidden, width, experts, top_k, expert_parallel, distribution, matrices, model_width
(the width before tensor parallelism), latency_ns.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cost_models.errors import CostModelError
from cost_models.laws.all_to_all import remote_copies
from cost_models.specs.dtypes import ACTIVATION_BYTES


class _Group(NamedTuple):
    """The rows of one weight format: its name in the package, and the format of the weights in `dtypes.BITS`."""

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
#: vLLM's FP8 experts with a scale a tensor were measured with kernels that were not tuned: 2 to 4 times as slow as its
#: BF16 experts, and as TensorRT-LLM's in FP8.
_HOPPER = {**_VLLM, "fp8": _Group("moe/trtllm/1.3.0rc20", "fp8", "fp8")}
_GROUPS = {"h100_sxm": _HOPPER, "h200_sxm": _HOPPER, "l40s": _VLLM, "a100_sxm": _SGLANG}
_DEEPSEEK = {"hidden": 7168, "model_width": 2048, "experts": 256, "top_k": 8}
_DEEPEP, _DEEPEP_FOLDER = ("h100_sxm", "h200_sxm"), "comm/vllm/0.24.0"
#: Time of DeepEP's kernels for a copy of a token beside sending it, as a number of bytes; found by leaving out whole
#: models.
_COPY_BYTES = 4096.0
_NCCL = {"h100_sxm": "2.29.2", "h200_sxm": "2.29.2", "a100_sxm": "2.27.3"}
#: Models whose experts have no gate, as (hidden, width, experts): Nemotron-H-style squared ReLU. vLLM's collection
#: measures them without a gate (times are below the bound of three matrices), sglang's measures all models with one.
_WITHOUT_GATE = {(2048, 5120, 512), (2688, 1856, 128), (1024, 2688, 512), (8192, 5120, 512)}


def read_experts(root: Path, gpu: str) -> dict[str, tuple[str, pd.DataFrame, str]]:
    """Return the measured experts of a GPU: for each group the format of its weights, its rows, and a text about the
    source.

    Groups are bf16, fp8, fp8_block, int4 and mxfp4, those with data.

    Args:
        root: the folder `systems/data` of aiconfigurator_core.
        gpu: its name there, such as h100_sxm.

    Rows of sglang and TensorRT-LLM with expert parallelism are left out: there, the local experts get the pairs of all
    GPUs, or those after an all-to-all. vLLM's rows of DeepSeek-V3 in FP8 are left out, too: its routing is limited to
    groups of experts, and sends evenly assigned tokens to the first GPU. Raises CostModelError for a GPU without a
    collection.
    """
    if gpu not in _GROUPS:
        raise CostModelError(f"no measured experts for {gpu}; known: {', '.join(_GROUPS)}")
    found = {}
    for key, group in _GROUPS[gpu].items():
        data = pd.read_parquet(root / gpu / group.folder / "moe_perf.parquet")
        rows = expert_rows(data[data["moe_dtype"] == group.name], gated="sglang" in group.folder)
        if "vllm" not in group.folder:
            rows = rows[rows["expert_parallel"] == 1]
        elif key == "fp8_block":
            rows = rows[(rows["expert_parallel"] == 1) | (rows[list(_DEEPSEEK)] != pd.Series(_DEEPSEEK)).any(axis=1)]
        kernels = ", ".join(sorted(data.loc[data["moe_dtype"] == group.name, "kernel_source"].astype(str).unique()))
        found[key] = (group.dtype, rows, f"aiconfigurator-core {gpu}/{group.folder} {group.name} ({kernels})")
    return found


def taken_experts(gpu: str) -> dict[str, str]:
    """Return by group the folder below the GPU's whose rows `read_experts` uses."""
    return {key: group.folder for key, group in _GROUPS.get(gpu, {}).items()}


def taken_all_to_all(gpu: str) -> dict[str, str]:
    """Return by implementation the folder (and the back end in it) whose rows `read_all_to_all` uses."""
    if gpu not in _NCCL:
        return {}
    deepep = {name: f"{_DEEPEP_FOLDER} {name}" for name in ("deepep_ht", "deepep_ll")} if gpu in _DEEPEP else {}
    return {**deepep, "nccl": f"comm/nccl/{_NCCL[gpu]}"}


def expert_rows(data: pd.DataFrame, gated: bool) -> pd.DataFrame:
    """Return the uniform columns of a table; `gated`: all experts have a gate."""
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


def read_all_to_all(root: Path, gpu: str) -> dict[str, tuple[float, pd.DataFrame, str]]:
    """Return the measured all-to-alls of a GPU, by implementation.

    Implementations are deepep_ht (high throughput, for prefill), deepep_ll (low latency, for decode) and nccl. Each has
    the time of handling a copy of a token beside its bytes (as a number of bytes), the rows, and a text about the
    source. Columns: phase, gpus, copies (of tokens) and bytes that each GPU sends to others, hidden, top_k, experts,
    latency_ns. NCCL's rows have no model (0) and hold for both phases. `root` and `gpu` as for `read_experts`; the
    result is empty for a GPU without a collection.
    """
    if gpu not in _NCCL:
        return {}
    found = {}
    if gpu in _DEEPEP:
        folder = _DEEPEP_FOLDER
        data = pd.read_parquet(root / gpu / folder / "moe_a2a_perf.parquet")
        for backend in ("deepep_ht", "deepep_ll"):
            rows = deepep_rows(data[data["comm_backend"] == backend])
            found[backend] = (_COPY_BYTES, rows, f"aiconfigurator-core {gpu}/{folder} {backend}")
    folder = f"comm/nccl/{_NCCL[gpu]}"
    rows = nccl_rows(pd.read_parquet(root / gpu / folder / "nccl_perf.parquet"))
    found["nccl"] = (0.0, rows, f"aiconfigurator-core {gpu}/{folder} alltoall half")
    return found


def deepep_rows(data: pd.DataFrame) -> pd.DataFrame:
    """Return the uniform columns of all-to-alls by DeepEP."""
    names = ("ep_size", "num_tokens", "hidden_size", "topk", "num_experts")
    gpus, tokens, hidden, top_k, experts = (data[name].to_numpy(np.int64) for name in names)
    shapes = zip(gpus.tolist(), tokens.tolist(), top_k.tolist(), strict=True)
    copies = np.array([float(remote_copies(g, np.array([float(t)]), k)[0]) for g, t, k in shapes])
    return pd.DataFrame(
        {
            "phase": data["phase"].astype(str).to_numpy(),
            "gpus": gpus,
            "copies": copies,
            "bytes": copies * hidden * ACTIVATION_BYTES,
            "hidden": hidden,
            "top_k": top_k,
            "experts": experts,
            # The file's `latency` is its `transmit_us` + `notify_us`, unlike the milliseconds of all other files.
            "latency_ns": data["latency"].to_numpy(float) * 1e3,
        }
    )


def nccl_rows(data: pd.DataFrame) -> pd.DataFrame:
    """Return the uniform columns of NCCL's: `message_size` numbers in each GPU's buffer, of which it keeps its own
    share."""
    data = data[(data["op_name"] == "alltoall") & (data["nccl_dtype"] == "half")]
    gpus = data["num_gpus"].to_numpy(np.int64)
    rows = pd.DataFrame(
        {
            "gpus": gpus,
            "copies": 0.0,
            "bytes": data["message_size"].to_numpy(float) * ACTIVATION_BYTES * (gpus - 1) / gpus,
            "hidden": 0,
            "top_k": 0,
            "experts": 0,
            "latency_ns": data["latency"].to_numpy(float) * 1e6,
        }
    )
    return pd.concat([rows.assign(phase=phase) for phase in ("dispatch", "combine")], ignore_index=True)
