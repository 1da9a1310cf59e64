"""What the operators of a step take that depend on its number of tokens, or of sampled rows, alone.

Every time is that of one GPU. A matrix product takes the longer of its arithmetic and of reading its weights,
each at the share of the peak that its kernel reaches, and a launch; activations stay in L2 while weights are
what limits it. Functions take arrays of counts, do the same IEEE operations on each element whatever the
array's length, and never decrease with the count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.architecture import (
    Matrix,
    expert_weights,
    kv_heads_per_gpu,
    layer_matrices,
    lm_head_matrix,
    share,
)
from cost_models.dtypes import ACTIVATION_BYTES, BITS, WeightTypes
from cost_models.gpu import GpuSpec, Kernel
from cost_models.model import ModelSpec

Floats = NDArray[np.float64]

#: Passes over FP32 logits to sample a token: conversion, softmax (two) and the draw.
_SAMPLING_PASSES = 4
#: Logits are computed in BF16 whatever the layers' format: engines leave the LM head unquantised.
LM_HEAD_TYPE = "bf16"
_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model on a tensor-parallel group of GPUs, with the formats of its weights."""

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel: int
    types: WeightTypes

    def matrix_type(self, matrix: Matrix) -> str:
        """The format of a layer's matrix; the router ("moe") is not quantised."""
        return "bf16" if matrix.operator == "moe" else self.types.linear


def token_terms(deployed: Deployed, tokens: Floats) -> dict[str, Floats]:
    """Nanoseconds of the layers' operators other than attention for each number of `tokens`."""
    terms: dict[str, Floats] = {"step": np.full_like(tokens, deployed.gpu.step_ns)}
    for matrix in layer_matrices(deployed.model, deployed.tensor_parallel):
        term = _matrix_ns(deployed, matrix, deployed.matrix_type(matrix), tokens)
        terms[matrix.operator] = terms.get(matrix.operator, 0.0) + term
    if deployed.model.moe is not None:
        terms["moe"] = terms["moe"] + _experts_ns(deployed, tokens)
    terms.update(_elementwise_terms(deployed, tokens))
    if deployed.tensor_parallel > 1:
        size = deployed.model.hidden * ACTIVATION_BYTES
        # Two a layer (after attention and after the FFN), and one for the sharded embedding.
        terms["all_reduce"] = (2 * deployed.model.layers + 1) * _all_reduce_ns(deployed, size, tokens)
    return {name: np.where(tokens > 0, term, 0.0) for name, term in terms.items()}


def row_terms(deployed: Deployed, rows: Floats) -> dict[str, Floats]:
    """Nanoseconds of what is done for each of the `rows` of hidden states that become a token."""
    head = lm_head_matrix(deployed.model, deployed.tensor_parallel)
    logits = deployed.model.vocab
    terms = {
        "lm_head": _matrix_ns(deployed, head, LM_HEAD_TYPE, rows),
        "sampling": _elementwise_ns(deployed.gpu, 4.0 * _SAMPLING_PASSES * logits, rows),
    }
    if deployed.tensor_parallel > 1:
        terms["gather_logits"] = _all_reduce_ns(deployed, logits * ACTIVATION_BYTES, rows)
    return {name: np.where(rows > 0, term, 0.0) for name, term in terms.items()}


def experts_touched(model: ModelSpec, tokens: Floats) -> Floats:
    """Distinct routed experts of a layer that `tokens` use, on average, if every expert is equally likely."""
    if model.moe is None:
        return np.zeros_like(tokens)
    idle = 1 - model.moe.top_k / model.moe.experts
    # Python's power, one by one: numpy's may differ in the last bit between long arrays and short ones.
    missed = np.array([idle**count for count in tokens.tolist()])
    return model.moe.experts * (1 - missed)


def _matrix_ns(deployed: Deployed, matrix: Matrix, dtype: str, tokens: Floats) -> Floats:
    weights = matrix.rows * matrix.columns
    compute, memory = _kernel_rates(deployed.gpu, deployed.gpu.gemm, dtype)
    arithmetic = tokens * (2 * weights / compute)
    traffic = weights * BITS[dtype] / 8 / memory
    return matrix.layers * (np.maximum(arithmetic, traffic) + deployed.gpu.gemm.launch_ns)


def _experts_ns(deployed: Deployed, tokens: Floats) -> Floats:
    model, dtype = deployed.model, deployed.types.experts
    if model.moe is None:
        return np.zeros_like(tokens)
    weights = expert_weights(model, deployed.tensor_parallel)
    compute, memory = _kernel_rates(deployed.gpu, deployed.gpu.moe, dtype)
    arithmetic = tokens * (2 * weights * model.moe.top_k / compute)
    traffic = experts_touched(model, tokens) * (weights * BITS[dtype] / 8 / memory)
    return model.moe_layers * (np.maximum(arithmetic, traffic) + deployed.gpu.moe.launch_ns)


def _kernel_rates(gpu: GpuSpec, kernel: Kernel, dtype: str) -> tuple[float, float]:
    """(FLOPs, bytes) a nanosecond that a kernel reaches on weights stored as `dtype`."""
    compute = gpu.peak(dtype) * kernel.flops_share(gpu.compute_type(dtype))
    return compute / _SECOND, gpu.hbm_bandwidth * kernel.bandwidth / _SECOND


def _elementwise_terms(deployed: Deployed, tokens: Floats) -> dict[str, Floats]:
    """Norms (four streams: each is fused with the residual), RoPE, activations; the embedding."""
    model, gpu = deployed.model, deployed.gpu
    heads = model.heads // deployed.tensor_parallel + kv_heads_per_gpu(model, deployed.tensor_parallel)
    stream = model.hidden * ACTIVATION_BYTES
    rotated = 2 * heads * model.head_dim * ACTIVATION_BYTES
    norms = 2 * _elementwise_ns(gpu, 4 * stream, tokens)
    if model.qk_norm:
        norms = norms + _elementwise_ns(gpu, rotated, tokens)
    return {
        "norm": model.layers * norms,
        "rope": model.layers * _elementwise_ns(gpu, rotated, tokens),
        "activation": model.layers * _elementwise_ns(gpu, _activation_bytes(deployed), tokens),
        "embedding": _elementwise_ns(gpu, 2 * stream, tokens),
    }


def _activation_bytes(deployed: Deployed) -> int:
    """Bytes a token that the non-linearity of an FFN reads and writes."""
    model = deployed.model
    streams = (3 if model.gated_ffn else 2) * ACTIVATION_BYTES
    if model.moe is None:
        return streams * share(model.ffn, deployed.tensor_parallel)
    return streams * model.moe.top_k * share(model.moe.moe_ffn, deployed.tensor_parallel)


def _elementwise_ns(gpu: GpuSpec, size: float, count: Floats) -> Floats:
    """Flat until the traffic of `size` bytes each takes longer than the launch, as measured."""
    traffic = count * (size / (gpu.hbm_bandwidth * gpu.elementwise.bandwidth / _SECOND))
    return np.maximum(traffic, gpu.elementwise.launch_ns)


def _all_reduce_ns(deployed: Deployed, size: int, count: Floats) -> Floats:
    link = deployed.gpu.all_reduce_over(deployed.tensor_parallel)
    return count * (size / (link.bandwidth / _SECOND)) + link.alpha_ns
