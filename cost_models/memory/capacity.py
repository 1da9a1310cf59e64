"""Bytes: of weights, of the KV cache and of activations, and how many KV blocks fit beside them on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
#: What is taken beside the tensors of the model, library workspaces and CUDA graph pools: an estimate.
_WORKSPACE_BYTES = _GIB // 2
#: Bytes of a logit while sampling: in BF16, in FP32, and as a probability.
LOGIT_BYTES = ACTIVATION_BYTES + 4 + 4
#: Kernels for MXFP4 take experts whose hidden size and width are multiples of these; weights are padded when loaded.
_MXFP4_HIDDEN, _MXFP4_WIDTH = 256, 128


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """The division of the memory of each GPU. `blocks` are the usable ones; bytes are those of one GPU.

    `draft_bytes` are the weights of what drafts on the same GPUs, which `weight_bytes` does not count;
    `draft_token_bytes` its KV of a token, which `block_bytes` does count.
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
        """Tokens whose keys and values fit."""
        return self.blocks * self.block_size

    def concurrency(self, sequence_tokens: int) -> float:
        """Sequences of that length that fit at once, as vLLM prints it: a sequence takes whole blocks."""
        return self.blocks / blocks_for(sequence_tokens, self.block_size)


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that a sequence of `tokens` takes."""
    return -(-tokens // block_size)


def weight_bytes(model: ModelSpec, placement: Placement = SINGLE_GPU) -> int:
    """Bytes of the weights on each GPU; of the stage that has most, with pipeline parallelism.

    Matrices and embeddings are sharded; norms, routers, the latent projections of MLA and, beyond their number, KV
    heads are replicated. Ranks of data parallelism replicate all but the routed experts, which they share: each by
    width, or whole ones with expert parallelism. Formats as `dtypes.weight_types` has them.
    """
    check_tensor_parallel(model, placement.tensor_parallel)
    check_expert_split(model, placement.split)
    return max(_stage_bytes(stage, placement) for stage in stages_of(model, placement.pipeline_parallel))


def _stage_bytes(stage: Stage, placement: Placement) -> int:
    """Bytes of a stage's weights. The last one needs the embedding, too, where it is the LM head's matrix."""
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
    """By how much the experts are larger on the GPU than in the checkpoint: with MXFP4, 1.09 for gpt-oss, as vLLM logs
    65.97 GiB of weights for the larger one (vllm#23278), and 13.72 for the smaller one."""
    if model.moe is None or types.experts != "mxfp4":
        return 1.0
    width = share(model.moe.moe_ffn, split.widths)
    hidden = -(-model.hidden // _MXFP4_HIDDEN) * _MXFP4_HIDDEN
    return hidden * (-(-width // _MXFP4_WIDTH) * _MXFP4_WIDTH) / (model.hidden * width)


def _bf16_bits(model: ModelSpec, types: WeightTypes, tensor_parallel: int, experts: int) -> float:
    """Bits to be added for modules that a checkpoint leaves in BF16; `experts` are the weights of all."""
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
    """Bytes of KV cache a token on each GPU, all layers, as long as no window has been passed.

    KV heads are sharded until each GPU has one, then replicated; the latent of MLA is always replicated.
    """
    check_tensor_parallel(model, tensor_parallel)
    return model.layers * kv_layer_bytes(model, kv_cache, tensor_parallel)


def kv_layer_bytes(model: ModelSpec, kv_cache: str = "auto", tensor_parallel: int = 1) -> int:
    """Bytes of KV cache a token and layer on each GPU."""
    return attention_heads(model, tensor_parallel, kv_cache).key_bytes


def kv_bytes(model: ModelSpec, tokens: int, kv_cache: str = "auto") -> int:
    """Bytes that one sequence of `tokens` needs in all: layers with a window stop growing when it is full."""
    in_window = min(tokens, model.sliding_window)
    return kv_layer_bytes(model, kv_cache) * (model.full_layers * tokens + model.window_layers * in_window)


def activation_bytes(
    model: ModelSpec,
    placement: Placement = SINGLE_GPU,
    limits: StepLimits = DEFAULT_LIMITS,
    logit_bytes: int = LOGIT_BYTES,
) -> int:
    """An estimate of what vLLM's profiling run leaves unavailable on each GPU, beside the weights.

    The run has `max_num_batched_tokens` tokens in flight, then samples for `max_num_seqs` sequences. Alive at
    once are the hidden state and the residual, with the widest operator of a layer; or, after the layers, the
    logits in BF16, in FP32 and as probabilities (`logit_bytes` each: older samplers take more). Half a GiB stands
    for workspaces and CUDA graphs. For Llama-3.1-8B at the defaults this is 1.3 GiB. It is reckoned, not measured:
    a run whose pool is nearly full all the time should be given the number of blocks that the engine logs.
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


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Settings of the memory of each GPU: the share of it that the engine uses, and the tokens of a block.

    `activations` (bytes a GPU) replaces the estimate. A drafter on the same GPUs has `draft_bytes` of weights and
    `draft_token_bytes` of KV a token on each: its layers are in the same blocks, as in vLLM. Its activations come after
    the target's, and need no room of their own.
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
    """The KV blocks that fit: (HBM x utilisation - weights - activations) / bytes of a block, less one.

    vLLM keeps block 0 for itself. A block holds all layers of its tokens; blocks that a sliding window has passed are
    not taken to be given back. With pipeline parallelism it holds those of a stage, and the stage with the least room
    counts, as in vLLM; with data parallelism the blocks are those of one rank.

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
    """Return the memory of the GPUs of a stage, whose blocks may be fewer than one."""
    budget, taken = int(gpu.hbm_bytes * memory.gpu_memory_utilization), _stage_bytes(stage, placement)
    token_bytes = kv_bytes_per_token(stage.model, placement.kv_cache, placement.tensor_parallel)
    block_bytes = memory.block_size * (token_bytes + memory.draft_token_bytes)
    left = budget - taken - memory.draft_bytes - activations
    sizes = (gpu.hbm_bytes, budget, taken, activations, left, memory.block_size, block_bytes)
    return KvCapacity(*sizes, left // block_bytes - 1, memory.draft_bytes, memory.draft_token_bytes)


def _no_room(model: str, gpus: str, found: KvCapacity, utilization: float) -> CostModelError:
    """The error about a model that leaves no KV blocks."""
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
    """Numbers a token that attention keeps at once: queries, keys, values and its output."""
    heads = model.heads // tensor_parallel
    if model.mla is not None:
        return heads * (2 * model.head_dim + 2 * model.mla.v_head_dim)
    return 2 * (heads + kv_heads_per_gpu(model, tensor_parallel)) * model.head_dim


def _ffn_width(model: ModelSpec, tensor_parallel: int) -> int:
    """Numbers a token that a dense FFN keeps at once: gate, up and product."""
    matrices = 3 if model.gated_ffn else 2
    return matrices * share(model.ffn, tensor_parallel) if model.dense_layers else 0


def _experts_width(model: ModelSpec, data_parallel: int, split: ExpertSplit) -> int:
    """Numbers that a GPU keeps at once for the experts of the tokens of all ranks, for each token of one rank."""
    if model.moe is None:
        return 0
    matrices = 3 if model.gated_ffn else 2
    each = matrices * share(model.moe.moe_ffn, split.widths) + model.hidden
    return share(model.moe.top_k * data_parallel * each, split.groups)


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
