"""Heads that draft for a model, as models of their own: their layers, and the parts that they share with the target.

The cost of a head's layers and matrices is computed as for any model. Sources: EAGLE (arXiv 2401.15077) and EAGLE-3
(arXiv 2503.01840), with vLLM's `llama_eagle.py` and `llama_eagle3.py`; DeepSeek-V3 (arXiv 2412.19437, 2.2) and vLLM's
`deepseek_mtp.py`; Medusa (arXiv 2401.10774) and vLLM's `medusa.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cost_models.memory.capacity import kv_bytes_per_token
from cost_models.roofline.architecture import Matrix, parameters, share
from cost_models.specs.dtypes import ACTIVATION_BYTES, BITS, kv_type, weight_types
from cost_models.specs.model import ModelSpec
from cost_models.specs.placement import ExpertSplit

#: Entries of the vocabulary of the published EAGLE-3 heads (`draft_vocab_size` of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B,
#: -LLaMA3.3-Instruct-70B and -Vicuna1.3-13B).
EAGLE3_VOCAB = 32_000


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head of one layer that drafts for a model on the model's own GPUs.

    The first pass of a step uses the matrices of `first`, later passes those of `later`; they differ before the layer.
    `own_lm_head`: it does not use the target's LM head. Published heads are in BF16 for any format of the target; an
    MTP layer (`native`) has the format of the target's layers.
    """

    first: ModelSpec
    later: ModelSpec
    own_lm_head: bool = False
    native: bool = False

    def weights(self, asked: str) -> str:
        """Return the format to give to `weight_types`, if the target's is `asked`."""
        return asked if self.native else "bf16"

    def weight_bytes(self, asked: str, tensor_parallel: int, split: ExpertSplit) -> int:
        """Return the bytes on each GPU; the embedding is the target's, and so is the LM head unless the head has its
        own."""
        types = weight_types(self.first, self.weights(asked))
        counted = parameters(self.first, tensor_parallel, split)
        bits = BITS[types.linear] * (counted.attention + counted.dense_ffn) + BITS[types.experts] * counted.experts
        bits += BITS[types.rest] * (counted.other + (counted.lm_head if self.own_lm_head else 0))
        return math.ceil(bits / 8)

    def kv_bytes_per_token(self, kv_cache: str, tensor_parallel: int) -> int:
        """Return the bytes of the layer's KV cache on each GPU, in the target's format."""
        return kv_bytes_per_token(self.first, kv_type(kv_cache), tensor_parallel)


def eagle_head(target: ModelSpec) -> DraftHead:
    """Return the head of EAGLE.

    A matrix (2h -> h) combines the embedding of the last token and the target's hidden state; then come a layer of the
    target's shape and the target's LM head. For a target with experts the layer is dense (see `_dense_layer`).
    """
    head = replace(_dense_layer(target, "EAGLE"), fused_inputs=2)
    return DraftHead(head, head)


def eagle3_head(target: ModelSpec, vocab: int = EAGLE3_VOCAB) -> DraftHead:
    """Return the head of EAGLE-3.

    In the first pass a matrix (3h -> h) combines three hidden states of the target. The layer projects queries, keys
    and values from the result, or from its own last output, beside the embedding (2h). The LM head of `vocab` entries
    is its own.
    """
    later = replace(_dense_layer(target, "EAGLE-3"), qkv_inputs=2, vocab=vocab, tie_embeddings=False)
    return DraftHead(replace(later, fused_inputs=3), later, own_lm_head=True)


def mtp_head(target: ModelSpec) -> DraftHead:
    """Return the head of multi-token prediction (MTP).

    A matrix (2h -> h) combines embedding and hidden state; then come one layer like the target's last, experts and
    latent attention included, and the target's LM head. For more drafts the layer is used again on its own output, as
    vLLM does with checkpoints that have one such layer (DeepSeek-V3).
    """
    layer = replace(_one_layer(target, "MTP"), fused_inputs=2)
    return DraftHead(layer, layer, native=True)


def medusa_matrices(target: ModelSpec, tensor_parallel: int = 1) -> tuple[Matrix, ...]:
    """Return the matrices of one of Medusa's heads: a residual block (h -> h) and an LM head.

    They are sharded as in vLLM: the block is whole on each GPU, the LM head is split by vocabulary.
    """
    hidden = target.hidden
    return (
        Matrix("medusa_block", hidden, hidden, 1),
        Matrix("medusa_lm_head", hidden, share(target.vocab, tensor_parallel), 1),
    )


def medusa_weight_bytes(target: ModelSpec, heads: int, tensor_parallel: int = 1) -> int:
    """Return the bytes of that many heads on each GPU, in BF16."""
    return heads * sum(matrix.weights for matrix in medusa_matrices(target, tensor_parallel)) * ACTIVATION_BYTES


def _dense_layer(target: ModelSpec, method: str) -> ModelSpec:
    """Return a layer with the target's attention and a dense FFN.

    Its width is the target's own; if all its layers have experts and no width is known, it is that of the experts that
    a token uses.
    """
    ffn, moe = target.ffn, target.moe
    if not ffn and moe is not None:
        ffn = moe.top_k * moe.moe_ffn + moe.shared_width
    return replace(_one_layer(target, method), ffn=ffn, moe=None, qk_norm=False, native_quant=None, bf16_layers=())


def _one_layer(target: ModelSpec, method: str) -> ModelSpec:
    """Return one layer of the target, with its experts if it has any, and with full attention."""
    moe = None if target.moe is None else replace(target.moe, first_k_dense=0)
    name = f"{target.name} {method} head"
    return replace(target, name=name, layers=1, moe=moe, window_layers=0, sliding_window=0, bf16_layers=())
