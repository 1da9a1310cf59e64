"""Bytes of weights, of the KV cache and of activations, and the number of KV blocks that fit beside them on a GPU."""

from __future__ import annotations

import math
from typing import NamedTuple

from cost_models.errors import CostModelError
from cost_models.roofline.architecture import (
    Parameters,
    attention_heads,
    check_expert_split,
    check_tensor_parallel,
    kv_heads_per_gpu,
    parameters,
    share,
    typed_experts,
    typed_matrices,
)
from cost_models.roofline.stages import Stage, stages_of
from cost_models.specs.dtypes import ACTIVATION_BYTES, BITS, WeightTypes, weight_types
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.model import ModelSpec
from cost_models.specs.placement import DEFAULT_LIMITS, SINGLE_GPU, ExpertSplit, Placement, StepLimits

_GIB = 2**30
#: Memory for library workspaces and CUDA graph pools, beside the tensors of the model: an estimate.
_WORKSPACE_BYTES = _GIB // 2
#: Bytes of a logit while sampling: in BF16, in FP32, and as a probability.
LOGIT_BYTES = ACTIVATION_BYTES + 4 + 4
#: MXFP4 kernels need experts whose hidden size and width are multiples of these; weights are padded when loaded.
_MXFP4_HIDDEN, _MXFP4_WIDTH = 256, 128


class KvCapacity(NamedTuple):
    """The division of the memory of each GPU. `blocks` is the number of usable blocks; bytes are those of one GPU.

    `draft_bytes` are the weights of a drafter on the same GPUs, which `weight_bytes` does not include;
    `draft_token_bytes` is the drafter's KV of a token, which `block_bytes` includes.
    """

    hbm_bytes: int
    budget_bytes: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    block_size: int
    block_bytes: int
    blocks: int
    draft_bytes: int = 0
    draft_token_bytes: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens whose keys and values fit."""
        return self.blocks * self.block_size

    def concurrency(self, sequence_tokens: int) -> float:
        """Return the number of sequences of that length that fit at once, as vLLM prints it: a sequence uses whole
        blocks."""
        return self.blocks / blocks_for(sequence_tokens, self.block_size)


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of blocks for a sequence of `tokens`."""
    return -(-tokens // block_size)


def weight_bytes(model: ModelSpec, placement: Placement = SINGLE_GPU) -> int:
    """Return the bytes of the weights on each GPU; with pipeline parallelism, of the largest stage.

    Matrices and embeddings are sharded; norms, routers and the latent projections of MLA are replicated, and so are KV
    heads if there are more GPUs than heads. Data-parallel ranks replicate everything except the routed experts, which
    they share: a part of the width of each, or whole experts with expert parallelism. Formats are those of
    `dtypes.weight_types`.
    """
    check_tensor_parallel(model, placement.tensor_parallel)
    check_expert_split(model, placement.split)
    return max(_stage_bytes(stage, placement) for stage in stages_of(model, placement.pipeline_parallel))


def _stage_bytes(stage: Stage, placement: Placement) -> int:
    """Return the bytes of a stage's weights. The last stage has the embedding, too, if the LM head uses its matrix."""
    tensor_parallel, split = placement.tensor_parallel, placement.split
    types = weight_types(stage.model, placement.weights)
    counted = parameters(stage.model, tensor_parallel, split)
    bits = BITS[types.linear] * (counted.attention + counted.dense_ffn)
    bits += BITS[types.experts] * counted.experts * _padding(stage.model, types, split)
    if types.bf16_layers:
        bits += _bf16_bits(stage.model, types, tensor_parallel, counted.experts)
    bits += BITS[types.rest] * _rest(counted, stage)
    return math.ceil(bits / 8)


def _padding(model: ModelSpec, types: WeightTypes, split: ExpertSplit) -> float:
    """Return the factor by which the experts are larger on the GPU than in the checkpoint.

    With MXFP4 it is 1.09 for gpt-oss: vLLM logs 65.97 GiB of weights for the larger model (vllm#23278), and 13.72 for
    the smaller one.
    """
    if model.moe is None or types.experts != "mxfp4":
        return 1.0
    width = share(model.moe.moe_ffn, split.widths)
    hidden = -(-model.hidden // _MXFP4_HIDDEN) * _MXFP4_HIDDEN
    return hidden * (-(-width // _MXFP4_WIDTH) * _MXFP4_WIDTH) / (model.hidden * width)


def _bf16_bits(model: ModelSpec, types: WeightTypes, tensor_parallel: int, experts: int) -> float:
    """Return the bits to add for modules that a checkpoint leaves in BF16; `experts` is the number of weights of all
    experts."""
    kept = sum(
        matrix.weights
        for matrix, dtype in typed_matrices(model, types, tensor_parallel)
        if matrix.module and dtype != types.linear
    )
    more = (BITS["bf16"] - BITS[types.linear]) * kept
    for layers, dtype in typed_experts(model, types):
        more += (BITS[dtype] - BITS[types.experts]) * experts * layers / model.moe_layers
    return more


def kv_bytes_per_token(model: ModelSpec, kv_cache: str = "auto", tensor_parallel: int = 1) -> int:
    """Return the bytes of KV cache per token on each GPU, over all layers, for contexts within the sliding window.

    KV heads are sharded until each GPU has one, then replicated; the latent of MLA is always replicated.
    """
    check_tensor_parallel(model, tensor_parallel)
    return model.layers * kv_layer_bytes(model, kv_cache, tensor_parallel)


def kv_layer_bytes(model: ModelSpec, kv_cache: str = "auto", tensor_parallel: int = 1) -> int:
    """Return the bytes of KV cache per token and layer on each GPU."""
    return attention_heads(model, tensor_parallel, kv_cache).key_bytes


def kv_bytes(model: ModelSpec, tokens: int, kv_cache: str = "auto") -> int:
    """Return the bytes that one sequence of `tokens` needs in all; layers with a window need at most the window."""
    in_window = min(tokens, model.sliding_window)
    return kv_layer_bytes(model, kv_cache) * (model.full_layers * tokens + model.window_layers * in_window)


def activation_bytes(
    model: ModelSpec,
    placement: Placement = SINGLE_GPU,
    limits: StepLimits = DEFAULT_LIMITS,
    logit_bytes: int = LOGIT_BYTES,
) -> int:
    """Return an estimate of the memory that vLLM's profiling run leaves unavailable on each GPU, beside the weights.

    The run computes `max_num_batched_tokens` tokens, then samples for `max_num_seqs` sequences. At the same time it
    needs the hidden state and the residual, with the widest operator of a layer; or, after the layers, the logits in
    BF16, in FP32 and as probabilities (`logit_bytes` each; older samplers need more). Half a GiB is added for
    workspaces and CUDA graphs. For Llama-3.1-8B with the defaults the sum is 1.3 GiB. It is computed, not measured: if
    the pool of a run is nearly full all the time, give the number of blocks that the engine logs.
    """
    tensor_parallel, split = placement.tensor_parallel, placement.split
    max_num_batched_tokens, max_num_seqs = limits.max_num_batched_tokens, limits.max_num_seqs
    check_tensor_parallel(model, tensor_parallel)
    stream = 2 * model.hidden
    ffn = max(_ffn_width(model, tensor_parallel), _experts_width(model, placement.data_parallel, split))
    widest = max(_attention_width(model, tensor_parallel), ffn)
    forward = max_num_batched_tokens * (stream + widest) * ACTIVATION_BYTES
    hidden_states = max_num_batched_tokens * model.hidden * ACTIVATION_BYTES
    logits = min(max_num_seqs, max_num_batched_tokens) * model.vocab * logit_bytes
    return max(forward, hidden_states + logits) + _WORKSPACE_BYTES


class MemorySettings(NamedTuple):
    """Settings of the memory of each GPU: the share of it that the engine uses, and the tokens of a block.

    `activations` (bytes per GPU) replaces the estimate. A drafter on the same GPUs has `draft_bytes` of weights and
    `draft_token_bytes` of KV per token on each: its layers are in the same blocks, as in vLLM. Its activations use the
    memory of the target's, one after the other.
    """

    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    activations: int | None = None
    draft_bytes: int = 0
    draft_token_bytes: int = 0


_MEMORY = MemorySettings()


def kv_capacity(
    model: ModelSpec,
    gpu: GpuSpec,
    placement: Placement = SINGLE_GPU,
    limits: StepLimits = DEFAULT_LIMITS,
    memory: MemorySettings = _MEMORY,
) -> KvCapacity:
    """Return the KV blocks that fit: (HBM x utilisation - weights - activations) / bytes of a block, less one.

    vLLM reserves block 0. A block holds all layers of its tokens; blocks outside a sliding window are not freed. With
    pipeline parallelism a block holds the layers of a stage, and the stage with the fewest blocks decides, as in vLLM;
    with data parallelism the blocks are those of one rank.

    Raises CostModelError if the model does not fit, or cannot be split over that many GPUs.
    """
    check_tensor_parallel(model, placement.tensor_parallel)
    check_expert_split(model, placement.split)
    activations = memory.activations
    if activations is None:
        activations = activation_bytes(model, placement, limits)
    stages = stages_of(model, placement.pipeline_parallel)
    tightest = min(
        (_stage_capacity(stage, gpu, placement, memory, activations) for stage in stages),
        key=lambda capacity: capacity.blocks,
    )
    if tightest.blocks < 1:
        raise _no_room(model.name, f"{placement.gpus} x {gpu.name}", tightest, memory.gpu_memory_utilization)
    return tightest


def _stage_capacity(
    stage: Stage, gpu: GpuSpec, placement: Placement, memory: MemorySettings, activations: int
) -> KvCapacity:
    """Return the memory of the GPUs of a stage; it may have less than one block."""
    budget, taken = int(gpu.hbm_bytes * memory.gpu_memory_utilization), _stage_bytes(stage, placement)
    token_bytes = kv_bytes_per_token(stage.model, placement.kv_cache, placement.tensor_parallel)
    block_bytes = memory.block_size * (token_bytes + memory.draft_token_bytes)
    left = budget - taken - memory.draft_bytes - activations
    sizes = (gpu.hbm_bytes, budget, taken, activations, left, memory.block_size, block_bytes)
    return KvCapacity(*sizes, left // block_bytes - 1, memory.draft_bytes, memory.draft_token_bytes)


def _no_room(model: str, gpus: str, found: KvCapacity, utilization: float) -> CostModelError:
    """Return the error about a model that leaves no memory for KV blocks."""
    drafter = f", a drafter of {_gib(found.draft_bytes)}" if found.draft_bytes else ""
    return CostModelError(
        f"{model} does not fit on {gpus}: weights {_gib(found.weight_bytes)}{drafter} and "
        f"activations {_gib(found.activation_bytes)} on each GPU leave no room for KV blocks in "
        f"{_gib(found.budget_bytes)} ({utilization:g} of {_gib(found.hbm_bytes)} HBM); raise tensor_parallel, "
        "lower max_num_seqs or max_num_batched_tokens, take narrower weights or a larger GPU"
    )


def _rest(counted: Parameters, stage: Stage) -> int:
    tied = counted.embedding if stage.last and not stage.first and not counted.lm_head else 0
    embedding = counted.embedding if stage.first else tied
    return embedding + (counted.lm_head if stage.last else 0) + counted.other


def _attention_width(model: ModelSpec, tensor_parallel: int) -> int:
    """Return the numbers per token that attention needs at the same time: queries, keys, values and its output."""
    heads = model.heads // tensor_parallel
    if model.mla is not None:
        return heads * (2 * model.head_dim + 2 * model.mla.v_head_dim)
    return 2 * (heads + kv_heads_per_gpu(model, tensor_parallel)) * model.head_dim


def _ffn_width(model: ModelSpec, tensor_parallel: int) -> int:
    """Return the numbers per token that a dense FFN needs at the same time: gate, up and product."""
    matrices = 3 if model.gated_ffn else 2
    return matrices * share(model.ffn, tensor_parallel) if model.dense_layers else 0


def _experts_width(model: ModelSpec, data_parallel: int, split: ExpertSplit) -> int:
    """Return the numbers that a GPU needs at the same time for the experts, given the tokens of all ranks: per token of
    a rank."""
    if model.moe is None:
        return 0
    matrices = 3 if model.gated_ffn else 2
    each = matrices * share(model.moe.moe_ffn, split.widths) + model.hidden
    return share(model.moe.top_k * data_parallel * each, split.groups)


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
