"""The matrices, parameters and FLOPs of a model, on one GPU of a tensor-parallel group."""

from __future__ import annotations

from typing import NamedTuple

from cost_models.errors import CostModelError
from cost_models.roofline.operands import Experts, Heads
from cost_models.specs.dtypes import WeightTypes
from cost_models.specs.model import Mla, ModelSpec, Moe
from cost_models.specs.placement import ExpertSplit

#: Operators whose matrices are never quantised: the router, and the matrix before a draft head's layer.
_UNQUANTISED = frozenset(("moe", "fuse_inputs"))


class Matrix(NamedTuple):
    """A weight matrix by which every token is multiplied, in each of `layers` layers; `module` is its name in
    checkpoints."""

    operator: str
    rows: int
    columns: int
    layers: int
    module: str = ""

    @property
    def weights(self) -> int:
        """The numbers in the matrices of all layers, equal to the multiplications per token."""
        return self.rows * self.columns * self.layers


class Parameters(NamedTuple):
    """Parameters by part. `other` has norms, biases, routers, and the matrix before the layers of a draft head."""

    embedding: int
    lm_head: int
    attention: int
    dense_ffn: int
    experts: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.lm_head + self.attention + self.dense_ffn + self.experts + self.other


class Flops(NamedTuple):
    """Floating-point operations; a multiplication and an addition count as two."""

    linear: float
    attention: float

    @property
    def total(self) -> float:
        """Both."""
        return self.linear + self.attention


def check_tensor_parallel(model: ModelSpec, tensor_parallel: int) -> None:
    """Raise CostModelError unless `tensor_parallel` GPUs can share the heads (KV heads may be replicated)."""
    if tensor_parallel < 1 or model.heads % tensor_parallel:
        raise CostModelError(
            f"tensor_parallel {tensor_parallel} does not divide the {model.heads} attention heads of {model.name}"
        )
    kv_heads = model.kv_heads
    if model.mla is None and kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        raise CostModelError(
            f"tensor_parallel {tensor_parallel} neither divides the {kv_heads} KV heads of {model.name} "
            "nor is a multiple of them"
        )


def share(number: int, tensor_parallel: int) -> int:
    """Return the part of `number` on one GPU, rounded up."""
    return -(-number // tensor_parallel)


def kv_heads_per_gpu(model: ModelSpec, tensor_parallel: int) -> int:
    """Return the KV heads on each GPU: if there are more GPUs than KV heads, each has a copy of one."""
    return max(1, model.kv_heads // tensor_parallel)


def layer_matrices(model: ModelSpec, tensor_parallel: int = 1) -> tuple[Matrix, ...]:
    """Return the matrices of the layers on one GPU, and the matrix before them, without routed experts."""
    return _fuse_matrices(model) + _attention_matrices(model, tensor_parallel) + _ffn_matrices(model, tensor_parallel)


def typed_matrices(model: ModelSpec, types: WeightTypes, tensor_parallel: int = 1) -> tuple[tuple[Matrix, str], ...]:
    """Return the matrices of a model with their formats; a matrix that a checkpoint leaves in BF16 in some layers is
    two.

    The router and the matrix before a draft head's layer are never quantised.
    """
    found = []
    for matrix in layer_matrices(model, tensor_parallel):
        kept = matrix.layers if matrix.operator in _UNQUANTISED else min(types.kept(matrix.module), matrix.layers)
        for layers, dtype in ((matrix.layers - kept, types.linear), (kept, "bf16")):
            if layers:
                found.append((matrix._replace(layers=layers), dtype))
    return tuple(found)


def typed_experts(model: ModelSpec, types: WeightTypes) -> tuple[tuple[int, str], ...]:
    """Return pairs (number of layers with experts, format of the experts)."""
    kept = min(types.kept("experts"), model.moe_layers)
    return tuple(pair for pair in ((model.moe_layers - kept, types.experts), (kept, "bf16")) if pair[0])


def lm_head_matrix(model: ModelSpec, tensor_parallel: int = 1) -> Matrix:
    """Return the matrix that turns a hidden state into logits, sharded by vocabulary."""
    return Matrix("lm_head", model.hidden, share(model.vocab, tensor_parallel), 1)


def check_expert_split(model: ModelSpec, split: ExpertSplit) -> None:
    """Raise CostModelError unless the model has experts and its GPUs can share them by this split."""
    if split.whole and model.moe is None:
        raise CostModelError(f"expert_parallel: {model.name} has no experts")
    if model.moe is not None and model.moe.experts % split.groups:
        raise CostModelError(
            f"expert_parallel over {split.gpus} GPUs (tensor_parallel x data_parallel) does not divide the "
            f"{model.moe.experts} experts of {model.name}"
        )


def routed_experts(model: ModelSpec, moe: Moe, widths: int = 1, dtype: str = "bf16") -> Experts:
    """Return the routed experts of a layer, stored as `dtype`, each as the part that one of `widths` GPUs has."""
    width = share(moe.moe_ffn, widths)
    return Experts(model.hidden, width, moe.experts, moe.top_k, _ffn_matrix_count(model), dtype)


def attention_heads(model: ModelSpec, tensor_parallel: int = 1, kv_dtype: str = "bf16") -> Heads:
    """Return the attention of a layer on one GPU: KV heads are sharded until each GPU has one; MLA's latent is
    replicated."""
    heads = model.heads // tensor_parallel
    if model.mla is None:
        kv_heads = kv_heads_per_gpu(model, tensor_parallel)
        return Heads(heads, kv_heads, model.head_dim, model.head_dim, kv_dtype)
    mla = model.mla
    return Heads(heads, 1, model.head_dim, mla.v_head_dim, kv_dtype, mla.latent, mla.kv_lora_rank)


def parameters(model: ModelSpec, tensor_parallel: int = 1, split: ExpertSplit | None = None) -> Parameters:
    """Return the parameters on one GPU.

    Multi-token-prediction layers are not counted, since they are not loaded. Experts are split as `split` says, by
    default by width over the tensor-parallel group.
    """
    attention = sum(matrix.weights for matrix in _attention_matrices(model, tensor_parallel))
    ffn = _ffn_matrices(model, tensor_parallel)
    routers = sum(matrix.weights for matrix in ffn if matrix.operator == "moe")
    embedding = model.hidden * share(model.vocab, tensor_parallel)
    experts = 0
    if model.moe is not None:
        split = split or ExpertSplit(tensor_parallel)
        held = model.moe.experts // split.groups * model.moe_layers
        experts = held * routed_experts(model, model.moe, split.widths).weights
    return Parameters(
        embedding=embedding,
        lm_head=0 if model.tie_embeddings else embedding,
        attention=attention,
        dense_ffn=sum(matrix.weights for matrix in ffn) - routers,
        experts=experts,
        other=sum(matrix.weights for matrix in _fuse_matrices(model)) + routers + _vectors(model, tensor_parallel),
    )


def active_parameters(model: ModelSpec) -> int:
    """Return the parameters that one token uses: of the experts only those to which it is routed."""
    counted = parameters(model)
    if model.moe is None:
        return counted.total
    return counted.total - counted.experts + counted.experts // model.moe.experts * model.moe.top_k


def prefill_flops(model: ModelSpec, tokens: int) -> Flops:
    """Return the usual model FLOPs of a prompt: 2 x active parameters x tokens, and causal attention.

    Embedding and LM head count for every token, as in the usual definition of model FLOPs utilisation. An engine
    computes the LM head for the last token only, so that a time from this count is no lower bound; `Roofline.bound_ns`
    is one.
    """
    window = min(tokens, model.sliding_window)
    pairs_full = tokens * tokens / 2
    pairs_window = window * (tokens - window / 2)
    pairs = model.full_layers * pairs_full + model.window_layers * pairs_window
    return Flops(2.0 * active_parameters(model) * tokens, attention_heads(model).pair_flops * pairs)


def _fuse_matrices(model: ModelSpec) -> tuple[Matrix, ...]:
    if not model.fused_inputs:
        return ()
    return (Matrix("fuse_inputs", model.fused_inputs * model.hidden, model.hidden, 1),)


def _attention_matrices(model: ModelSpec, tensor_parallel: int) -> tuple[Matrix, ...]:
    if model.mla is not None:
        return _mla_matrices(model, model.mla, tensor_parallel)
    queries = model.heads // tensor_parallel * model.head_dim
    keys = kv_heads_per_gpu(model, tensor_parallel) * model.head_dim
    return (
        Matrix("qkv_proj", model.qkv_inputs * model.hidden, queries + 2 * keys, model.layers, "qkv_proj"),
        Matrix("attention_out", queries, model.hidden, model.layers, "o_proj"),
    )


def _mla_matrices(model: ModelSpec, mla: Mla, tensor_parallel: int) -> tuple[Matrix, ...]:
    """Return MLA's projections: those to the latents are replicated, those to the heads sharded (DeepSeek-V2, 2.1).

    Decoding absorbs the last projection into queries and outputs, with the same weights and FLOPs per token.
    """
    heads = model.heads // tensor_parallel
    queries = heads * model.head_dim
    down, inputs = mla.q_lora_rank + mla.latent, model.qkv_inputs * model.hidden
    if mla.q_lora_rank:
        query_up = Matrix("qkv_proj", mla.q_lora_rank, queries, model.layers, "q_b_proj")
    else:
        query_up = Matrix("qkv_proj", inputs, queries, model.layers, "q_b_proj")
    return (
        Matrix("qkv_proj", inputs, down, model.layers, "qkv_a_proj"),
        query_up,
        Matrix(
            "qkv_proj", mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim), model.layers, "kv_b_proj"
        ),
        Matrix("attention_out", heads * mla.v_head_dim, model.hidden, model.layers, "o_proj"),
    )


def _ffn_matrices(model: ModelSpec, tensor_parallel: int) -> tuple[Matrix, ...]:
    """Return the matrices of dense FFNs and shared experts, and the router ("moe")."""
    matrices = _ffn(model, model.ffn, model.dense_layers, tensor_parallel)
    if model.moe is None:
        return matrices
    shared = model.moe.shared_width
    matrices += _ffn(model, shared, model.moe_layers, tensor_parallel, "shared_")
    return (*matrices, Matrix("moe", model.hidden, model.moe.experts, model.moe_layers))


def _ffn(model: ModelSpec, width: int, layers: int, tensor_parallel: int, prefix: str = "") -> tuple[Matrix, ...]:
    if not width or not layers:
        return ()
    local = share(width, tensor_parallel)
    return (
        Matrix("ffn", model.hidden, (_ffn_matrix_count(model) - 1) * local, layers, f"{prefix}gate_up_proj"),
        Matrix("ffn", local, model.hidden, layers, f"{prefix}down_proj"),
    )


def _ffn_matrix_count(model: ModelSpec) -> int:
    """Return the number of matrices of an FFN: 3 (gate, up and down) or 2 (up and down)."""
    return 3 if model.gated_ffn else 2


def _vectors(model: ModelSpec, tensor_parallel: int) -> int:
    """Return the number of weights in norms (two a layer, one at the end, those of q and k) and in biases of q, k and
    v."""
    norms = (2 * model.layers + 1) * model.hidden
    if model.qk_norm:
        norms += 2 * model.head_dim * model.layers
    if model.mla is not None:
        norms += (model.mla.q_lora_rank + model.mla.kv_lora_rank) * model.layers
    if not model.qkv_bias:
        return norms
    heads = model.heads // tensor_parallel + 2 * kv_heads_per_gpu(model, tensor_parallel)
    return norms + heads * model.head_dim * model.layers
