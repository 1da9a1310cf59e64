"""What the operators of a step take that depend on its number of tokens, or of sampled rows, alone.

Every time is that of one GPU. Functions take arrays of counts, do the same IEEE operations on each element whatever the
array's length, and never decrease with the count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cost_models.architecture import (
    Matrix,
    kv_heads_per_gpu,
    layer_matrices,
    lm_head_matrix,
    routed_experts,
    share,
)
from cost_models.dtypes import ACTIVATION_BYTES, WeightTypes
from cost_models.gpu import GpuSpec
from cost_models.host import HostModel
from cost_models.kernels import Kernels
from cost_models.model import ModelSpec
from cost_models.operands import Floats

#: Logits are computed in BF16 whatever the layers' format: engines leave the LM head unquantised.
LM_HEAD_TYPE = "bf16"
#: Parts of a step that are terms of the host model, not kernels of the model.
HOST_PARTS = frozenset(("step", "sync", "sampling"))
_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class Deployed:
    """A model on a tensor-parallel group of GPUs, with the formats of its weights."""

    model: ModelSpec
    gpu: GpuSpec
    kernels: Kernels
    host: HostModel
    tensor_parallel: int
    types: WeightTypes

    def matrix_type(self, matrix: Matrix) -> str:
        """The format of a layer's matrix; the router ("moe") is not quantised."""
        return "bf16" if matrix.operator == "moe" else self.types.linear


def token_terms(deployed: Deployed, tokens: Floats) -> dict[str, Floats]:
    """Nanoseconds of the layers' operators other than attention for each number of `tokens`, and of the step itself."""
    model, moe, host = deployed.model, deployed.model.moe, deployed.host
    terms: dict[str, Floats] = {}
    for matrix in layer_matrices(model, deployed.tensor_parallel):
        term = _matrix_ns(deployed, matrix, deployed.matrix_type(matrix), tokens)
        terms[matrix.operator] = terms.get(matrix.operator, 0.0) + term
    if moe is not None:
        experts = routed_experts(model, moe, deployed.tensor_parallel, deployed.types.experts)
        terms["moe"] = terms["moe"] + model.moe_layers * deployed.kernels.experts_ns(experts, tokens)
    terms.update(_elementwise_terms(deployed, tokens))
    if deployed.tensor_parallel > 1:
        reduces = all_reduces(model)
        terms["all_reduce"] = reduces * _all_reduce_ns(deployed, model.hidden * ACTIVATION_BYTES, tokens)
    terms = {name: host.kernel_scale * term for name, term in terms.items()}
    terms["step"] = np.full_like(tokens, _SECOND * host.device_step)
    if deployed.tensor_parallel > 1:
        doublings = math.log2(deployed.tensor_parallel)
        terms["sync"] = np.full_like(tokens, _SECOND * host.device_sync * reduces * doublings)
    return {name: np.where(tokens > 0, term, 0.0) for name, term in terms.items()}


def row_terms(deployed: Deployed, rows: Floats) -> dict[str, Floats]:
    """Nanoseconds of what is done for each of the `rows` of hidden states that become a token."""
    head = lm_head_matrix(deployed.model, deployed.tensor_parallel)
    logits, host = deployed.model.vocab, deployed.host
    terms = {"lm_head": host.kernel_scale * _matrix_ns(deployed, head, LM_HEAD_TYPE, rows)}
    if deployed.tensor_parallel > 1:
        gather = _all_reduce_ns(deployed, logits * ACTIVATION_BYTES, rows)
        terms["gather_logits"] = host.kernel_scale * gather
    terms["sampling"] = rows * (_SECOND * host.device_logit * logits)
    return {name: np.where(rows > 0, term, 0.0) for name, term in terms.items()}


def all_reduces(model: ModelSpec) -> int:
    """All-reduces of a step under TP: two a layer (after attention, after the FFN), one for the sharded embedding."""
    return 2 * model.layers + 1


def _matrix_ns(deployed: Deployed, matrix: Matrix, dtype: str, tokens: Floats) -> Floats:
    return matrix.layers * deployed.kernels.matrix_ns(dtype, matrix.rows, matrix.columns, tokens)


def _elementwise_terms(deployed: Deployed, tokens: Floats) -> dict[str, Floats]:
    """Norms (four streams: each is fused with the residual), RoPE, activations; the embedding."""
    model, elementwise_ns = deployed.model, deployed.kernels.elementwise_ns
    heads = model.heads // deployed.tensor_parallel + kv_heads_per_gpu(model, deployed.tensor_parallel)
    stream = model.hidden * ACTIVATION_BYTES
    rotated = 2 * heads * model.head_dim * ACTIVATION_BYTES
    norms = 2 * elementwise_ns(4 * stream, tokens)
    if model.qk_norm:
        norms = norms + elementwise_ns(rotated, tokens)
    return {
        "norm": model.layers * norms,
        "rope": model.layers * elementwise_ns(rotated, tokens),
        "activation": _activation_ns(deployed, tokens),
        "embedding": elementwise_ns(2 * stream, tokens),
    }


def _activation_ns(deployed: Deployed, tokens: Floats) -> Floats:
    """The non-linearity of dense FFNs and of shared experts; routed experts have theirs in their fused kernels."""
    model, moe = deployed.model, deployed.model.moe
    streams = (3 if model.gated_ffn else 2) * ACTIVATION_BYTES
    shared = moe.shared_experts * moe.moe_ffn if moe else 0
    total = np.zeros_like(tokens)
    for width, layers in ((model.ffn, model.dense_layers), (shared, model.moe_layers)):
        if width and layers:
            size = streams * share(width, deployed.tensor_parallel)
            total = total + layers * deployed.kernels.elementwise_ns(size, tokens)
    return total


def _all_reduce_ns(deployed: Deployed, size: int, count: Floats) -> Floats:
    return deployed.kernels.all_reduce_ns(deployed.tensor_parallel, size * count)
