"""Times of the operators of a step that depend only on its number of tokens, or of sampled rows.

Every time is that of one GPU. Functions take arrays of counts. They do the same IEEE operations on each element for any
length of the array, and never decrease with the count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cost_models.kernels.contract import Kernels
from cost_models.laws.all_to_all import remote_copies
from cost_models.roofline.architecture import (
    Matrix,
    kv_heads_per_gpu,
    lm_head_matrix,
    routed_experts,
    share,
    typed_experts,
    typed_matrices,
)
from cost_models.roofline.operands import Experts, Floats
from cost_models.specs.dtypes import ACTIVATION_BYTES, WeightTypes
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.host import HostModel
from cost_models.specs.model import ModelSpec
from cost_models.specs.placement import ExpertSplit

#: Logits are computed in BF16 for any format of the layers: engines leave the LM head unquantised.
LM_HEAD_TYPE = "bf16"
#: Parts of a step that are terms of the host model, not kernels of the model.
HOST_PARTS = frozenset(("step", "sync", "sampling"))
_SECOND = 1e9


class Deployed(NamedTuple):
    """A model, or the layers of a pipeline's stage, on a tensor-parallel group of GPUs, with the formats of its
    weights.

    `data_parallel` such groups share the routed experts: parts of each or, with `expert_parallel`, whole ones. `first`
    and `last` are True if the layers begin with the embedding, and end with the LM head.
    """

    model: ModelSpec
    gpu: GpuSpec
    kernels: Kernels
    host: HostModel
    tensor_parallel: int
    types: WeightTypes
    data_parallel: int = 1
    expert_parallel: bool = False
    first: bool = True
    last: bool = True

    @property
    def split(self) -> ExpertSplit:
        """The split of the routed experts over the GPUs."""
        return ExpertSplit(self.tensor_parallel * self.data_parallel, self.expert_parallel)

    @property
    def matrices(self) -> tuple[tuple[Matrix, str], ...]:
        """The matrices of the layers and the one before them, with the format of each, without routed experts."""
        return typed_matrices(self.model, self.types, self.tensor_parallel)

    @property
    def experts(self) -> tuple[tuple[int, Experts], ...]:
        """Pairs (number of layers, routed experts on a GPU), one for each format of experts."""
        model, moe = self.model, self.model.moe
        if moe is None:
            return ()
        typed = typed_experts(model, self.types)
        return tuple((layers, routed_experts(model, moe, self.split.widths, dtype)) for layers, dtype in typed)


def token_terms(deployed: Deployed, tokens: Floats) -> dict[str, Floats]:
    """Return the ns of a step's operators other than attention for each number of `tokens`, and of the step itself.

    Routed experts are included unless ranks share them.
    """
    model, moe, host = deployed.model, deployed.model.moe, deployed.host
    terms: dict[str, Floats] = {}
    for matrix, dtype in deployed.matrices:
        term = _matrix_ns(deployed, matrix, dtype, tokens)
        terms[matrix.operator] = terms.get(matrix.operator, 0.0) + term
    if moe is not None and deployed.data_parallel == 1:
        terms["moe"] = terms.get("moe", 0.0) + _experts_ns(deployed, tokens)
    terms.update(_elementwise_terms(deployed, tokens))
    if deployed.tensor_parallel > 1:
        reduces = all_reduces(model, deployed.first)
        terms["all_reduce"] = reduces * _all_reduce_ns(deployed, model.hidden * ACTIVATION_BYTES, tokens)
    terms = {name: host.kernel_scale * term for name, term in terms.items()}
    beyond = tokens > (host.graph_tokens or np.inf)
    terms["step"] = _SECOND * (host.device_step + np.where(beyond, host.graph_miss, 0.0))
    if deployed.tensor_parallel > 1:
        doublings = math.log2(deployed.tensor_parallel)
        terms["sync"] = np.full_like(tokens, _SECOND * host.device_sync * reduces * doublings)
    return {name: np.where(tokens > 0, term, 0.0) for name, term in terms.items()}


def shared_experts_ns(deployed: Deployed, tokens: Floats) -> Floats:
    """Return the ns of the routed experts that ranks share, for the `tokens` of all ranks."""
    return np.where(tokens > 0, deployed.host.kernel_scale * _experts_ns(deployed, tokens), 0.0)


def exchange_ns(deployed: Deployed, tokens: Floats) -> Floats:
    """Return the ns in which ranks exchange up to `tokens` each: to the experts' GPUs and back, in every layer.

    Each GPU of a rank sends its part of the rank's tokens. With expert parallelism a token goes to the GPUs that have
    one of its experts; if all GPUs have a part of each expert, it goes to all. The gather within a rank that follows
    takes as long as the all-reduce that it replaces, and is counted as that.
    """
    model, moe, gpus = deployed.model, deployed.model.moe, deployed.split.gpus
    if moe is None:
        return np.zeros_like(tokens)
    own = tokens / deployed.tensor_parallel
    copies = remote_copies(gpus, own, moe.top_k) if deployed.expert_parallel else own * (gpus - 1)
    size = copies * float(model.hidden * ACTIVATION_BYTES)
    phases = [deployed.kernels.all_to_all_ns(phase, gpus, copies, size) for phase in ("dispatch", "combine")]
    time = deployed.host.kernel_scale * model.moe_layers * (phases[0] + phases[1])
    return np.where(tokens > 0, time, 0.0)


def row_terms(deployed: Deployed, rows: Floats) -> dict[str, Floats]:
    """Return the ns of the operators after the layers, for each number of `rows`: hidden states from which a token is
    sampled."""
    if not deployed.last:
        return {}
    head = lm_head_matrix(deployed.model, deployed.tensor_parallel)
    logits, host = deployed.model.vocab, deployed.host
    terms = {"lm_head": host.kernel_scale * _matrix_ns(deployed, head, LM_HEAD_TYPE, rows)}
    if deployed.tensor_parallel > 1:
        gather = _all_reduce_ns(deployed, logits * ACTIVATION_BYTES, rows)
        terms["gather_logits"] = host.kernel_scale * gather
    terms["sampling"] = rows * (_SECOND * host.device_logit * logits)
    return {name: np.where(rows > 0, term, 0.0) for name, term in terms.items()}


def all_reduces(model: ModelSpec, first: bool = True) -> int:
    """Return the number of all-reduces of a step under TP: two a layer (after attention, after the FFN), one for the
    embedding."""
    return 2 * model.layers + first


def _experts_ns(deployed: Deployed, tokens: Floats) -> Floats:
    """Return the time of the routed experts of all layers for `tokens`, without the host's part."""
    time = np.zeros_like(tokens)
    for layers, experts in deployed.experts:
        time = time + layers * deployed.kernels.experts_ns(experts, tokens, deployed.split.groups)
    return time


def _matrix_ns(deployed: Deployed, matrix: Matrix, dtype: str, tokens: Floats) -> Floats:
    return matrix.layers * deployed.kernels.matrix_ns(dtype, matrix.rows, matrix.columns, tokens)


def _elementwise_terms(deployed: Deployed, tokens: Floats) -> dict[str, Floats]:
    """Return the times of norms (four streams: each is fused with the residual), RoPE, activations and the
    embedding."""
    model, elementwise_ns = deployed.model, deployed.kernels.elementwise_ns
    heads = model.heads // deployed.tensor_parallel + kv_heads_per_gpu(model, deployed.tensor_parallel)
    stream = model.hidden * ACTIVATION_BYTES
    rotated = 2 * heads * model.head_dim * ACTIVATION_BYTES
    norms = 2 * elementwise_ns(4 * stream, tokens)
    if model.qk_norm:
        norms = norms + elementwise_ns(rotated, tokens)
    terms = {
        "norm": model.layers * norms,
        "rope": model.layers * elementwise_ns(rotated, tokens),
        "activation": _activation_ns(deployed, tokens),
    }
    return terms | {"embedding": elementwise_ns(2 * stream, tokens)} if deployed.first else terms


def _activation_ns(deployed: Deployed, tokens: Floats) -> Floats:
    """Return the time of the activation function of dense FFNs and shared experts; the fused kernels of routed experts
    include theirs."""
    model, moe = deployed.model, deployed.model.moe
    streams = (3 if model.gated_ffn else 2) * ACTIVATION_BYTES
    shared = moe.shared_width if moe else 0
    total = np.zeros_like(tokens)
    for width, layers in ((model.ffn, model.dense_layers), (shared, model.moe_layers)):
        if width and layers:
            size = streams * share(width, deployed.tensor_parallel)
            total = total + layers * deployed.kernels.elementwise_ns(size, tokens)
    return total


def _all_reduce_ns(deployed: Deployed, size: int, count: Floats) -> Floats:
    return deployed.kernels.all_reduce_ns(deployed.tensor_parallel, size * count)
