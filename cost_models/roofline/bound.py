"""The physical bound of a step: arithmetic at the peak rate or memory traffic at the peak bandwidth, each byte read
once."""

from __future__ import annotations

import numpy as np

from cost_models.roofline.architecture import attention_heads, lm_head_matrix, routed_experts
from cost_models.roofline.operands import causal_pairs
from cost_models.roofline.operators import LM_HEAD_TYPE, Deployed
from cost_models.shape import BatchShape
from cost_models.specs.dtypes import BITS
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9


def head_bound_ns(gpu: GpuSpec, weights: int) -> tuple[float, float]:
    """Return the least times in ns to read matrices of `weights` BF16 numbers, and to multiply them with one row."""
    memory = _SECOND * weights * BITS[LM_HEAD_TYPE] / 8 / gpu.hbm_bandwidth
    return memory, _SECOND * 2 * weights / gpu.peak(LM_HEAD_TYPE)


class Bound:
    """The least arithmetic (ns at the peak rate) and memory traffic (bytes) of each part of a step on one GPU.

    Of a mixture of experts, the bytes are those of the mean number of experts in use with uniform routing; skewed
    routing uses fewer. Data-parallel ranks that share experts are assumed to have equal numbers of tokens.

    A decode with drafts reads its keys once and computes with them for each of its queries, which attend to the drafts
    before them; drafts are assumed to be spread evenly over the decodes.

    Not included: the embedding table (few rows are read), activations (they may stay in L2), communication.
    """

    __slots__ = (
        "_bandwidth",
        "_deployed",
        "_expert_bytes",
        "_expert_ns",
        "_experts",
        "_head_bytes",
        "_head_ns",
        "_key_bytes",
        "_key_ns",
        "_pair_ns",
        "_token_ns",
        "_weight_bytes",
    )

    def __init__(self, deployed: Deployed, kv_cache: str) -> None:
        model, gpu, tensor_parallel, split = deployed.model, deployed.gpu, deployed.tensor_parallel, deployed.split
        self._deployed = deployed
        self._bandwidth = gpu.hbm_bandwidth / _SECOND
        matrices = deployed.matrices
        self._weight_bytes = sum(matrix.weights * BITS[dtype] / 8 for matrix, dtype in matrices)
        self._token_ns = sum(_SECOND * 2 * matrix.weights / gpu.peak(dtype) for matrix, dtype in matrices)
        self._experts = routed_experts(model, model.moe, split.widths) if model.moe else None
        each = [(layers * experts.weights / split.groups, experts.dtype) for layers, experts in deployed.experts]
        self._expert_bytes = sum(weights * BITS[dtype] / 8 for weights, dtype in each)
        self._expert_ns = sum(_SECOND * 2 * weights / gpu.peak(dtype) for weights, dtype in each)
        head = lm_head_matrix(model, tensor_parallel).weights if deployed.last else 0
        self._head_bytes = head * BITS[LM_HEAD_TYPE] / 8
        self._head_ns = _SECOND * 2 * head / gpu.peak(LM_HEAD_TYPE)
        heads = attention_heads(model, tensor_parallel, kv_cache)
        self._key_bytes = heads.key_bytes
        self._key_ns = _SECOND * heads.key_flops / gpu.peak(kv_cache)
        self._pair_ns = _SECOND * heads.pair_flops / gpu.peak(kv_cache)

    def ns(self, shape: BatchShape) -> float:
        """Return the longer of the step's arithmetic and its memory traffic, in ns."""
        return max(self._arithmetic_ns(shape), self._bytes(shape) / self._bandwidth)

    def _arithmetic_ns(self, shape: BatchShape) -> float:
        model = self._deployed.model
        tokens, context = np.array(shape.chunks, dtype=float).reshape(-1, 2).T
        pairs = model.full_layers * float(causal_pairs(tokens, context, 0).sum())
        if model.window_layers:
            pairs += model.window_layers * float(causal_pairs(tokens, context, model.sliding_window).sum())
        top_k = 0 if model.moe is None else model.moe.top_k
        return (
            shape.tokens * (self._token_ns + self._deployed.data_parallel * top_k * self._expert_ns)
            + (shape.sampled + shape.draft_tokens) * self._head_ns
            + self._decode_pairs(shape) * self._key_ns
            + pairs * self._pair_ns
        )

    def _bytes(self, shape: BatchShape) -> float:
        model, tokens = self._deployed.model, shape.tokens
        if not tokens:
            return 0.0
        keys = self._decode_keys(shape)
        for chunk, context in shape.chunks:
            keys += model.full_layers * (chunk + context)
            keys += model.window_layers * min(chunk + context, chunk + model.sliding_window - 1)
        everywhere = np.array([tokens * self._deployed.data_parallel], dtype=float)
        touched = float(self._experts.touched(everywhere)[0]) if self._experts else 0.0
        return (
            self._weight_bytes
            + touched * self._expert_bytes
            + (self._head_bytes if shape.sampled + shape.draft_tokens else 0)
            + keys * self._key_bytes
        )

    def _decode_pairs(self, shape: BatchShape) -> float:
        """Return the (query, key) pairs of the decodes and their drafts, over all layers."""
        keys, drafts = self._decode_keys(shape), shape.draft_tokens
        if not shape.decodes or not drafts:
            return keys
        each = drafts / shape.decodes
        unseen = self._deployed.model.layers * drafts * (each + 1) / 2
        return max(float(keys), keys * (1 + each) - unseen)

    def _decode_keys(self, shape: BatchShape) -> int:
        """Return the keys to which the decodes attend, over all layers."""
        model = self._deployed.model
        return model.full_layers * shape.decode_context + model.window_layers * shape.decode_window_context
