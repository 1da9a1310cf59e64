"""Operands of a layer's operators on one GPU: heads of attention, routed experts, and the number of experts in use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cost_models.specs.dtypes import kv_number_bytes

Floats = NDArray[np.float64]


class Heads(NamedTuple):
    """The attention of one layer on one GPU. `head_dim` is that of queries and keys, `v_head_dim` that of values.

    With MLA (`latent` > 0) a token's cache entry is one vector of `latent` numbers, of which the first `kv_lora_rank`
    are the compressed value; `kv_heads` is then 1.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_dtype: str
    latent: int = 0
    kv_lora_rank: int = 0

    @property
    def key_bytes(self) -> int:
        """Bytes of KV cache of one token."""
        numbers = self.latent or self.kv_heads * (self.head_dim + self.v_head_dim)
        return numbers * kv_number_bytes(self.kv_dtype)

    @property
    def pair_flops(self) -> int:
        """FLOPs of a (query, key) pair in prefill: the score and the weighted sum, over all heads."""
        return 2 * self.heads * (self.head_dim + self.v_head_dim)

    @property
    def key_flops(self) -> int:
        """FLOPs of one decode with one key. MLA computes with the latent itself, for each head (DeepSeek-V2, 2.1)."""
        if not self.latent:
            return self.pair_flops
        return 2 * self.heads * (self.latent + self.kv_lora_rank)


class Experts(NamedTuple):
    """The routed experts of one layer on one GPU: `width` is the part of each expert's FFN on this GPU.

    `matrices` are 3 for a gated FFN, else 2; all have the format `dtype`.
    """

    hidden: int
    width: int
    experts: int
    top_k: int
    matrices: int
    dtype: str

    @property
    def weights(self) -> int:
        """Numbers in the matrices of one expert."""
        return self.matrices * self.hidden * self.width

    def touched(self, tokens: Floats) -> Floats:
        """Return the mean number of distinct experts that `tokens` use if every expert is equally likely."""
        idle = 1 - self.top_k / self.experts
        # Python's power, one by one: numpy's may differ in the last bit between long arrays and short ones.
        touched: Floats = self.experts * (1 - np.array([idle**count for count in tokens.tolist()]))
        return touched


def causal_pairs(tokens: Floats, context: Floats, window: int) -> Floats:
    """Return the (query, key) pairs of chunks of `tokens` after `context` earlier ones: a token attends to itself and
    to all tokens before it.

    With a `window` > 0 it attends to itself and at most `window` - 1 tokens before it.
    """
    if not window:
        return tokens * context + tokens * (tokens + 1) / 2
    growing = np.minimum(tokens, np.maximum(0, window - context))
    pairs: Floats = growing * context + growing * (growing + 1) / 2 + (tokens - growing) * window
    return pairs


def causal_keys(tokens: Floats, context: Floats, window: int) -> Floats:
    """Return the keys to which any token of a chunk attends."""
    seen: Floats = np.minimum(context, window - 1) if window else context
    return tokens + seen
