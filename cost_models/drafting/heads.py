"""Heads that draft for a model, as models of their own: their layers, and what they share with the target.

A head's layers and matrices are counted and priced as any model's. Sources: EAGLE (arXiv 2401.15077) and EAGLE-3
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

    The first pass of a step is one of `first`, those that follow of `later`, which differ in the matrices before the
    layer. `own_lm_head`: it does not use the target's. Published heads are in BF16 whatever the target is; an MTP layer
    (`native`) is stored as the target's layers are.
    """

    first: ModelSpec
    later: ModelSpec
    own_lm_head: bool = False
    native: bool = False

    def weights(self, asked: str) -> str:
        """The format that `weight_types` is to be asked for, if the target's is `asked`."""
        return asked if self.native else "bf16"

    def weight_bytes(self, asked: str, tensor_parallel: int, split: ExpertSplit) -> int:
        """Bytes on each GPU; the embedding is the target's, and so is the LM head unless it has its own."""
        types = weight_types(self.first, self.weights(asked))
        counted = parameters(self.first, tensor_parallel, split)
        bits = BITS[types.linear] * (counted.attention + counted.dense_ffn) + BITS[types.experts] * counted.experts
        bits += BITS[types.rest] * (counted.other + (counted.lm_head if self.own_lm_head else 0))
        return math.ceil(bits / 8)

    def kv_bytes_per_token(self, kv_cache: str, tensor_parallel: int) -> int:
        """Bytes of the layer's KV cache on each GPU, in the target's format."""
        return kv_bytes_per_token(self.first, kv_type(kv_cache), tensor_parallel)


def eagle_head(target: ModelSpec) -> DraftHead:
    """EAGLE: the embedding of the last token and the target's hidden state are made one (2h -> h), then a layer of the
    target's shape; logits by the target's LM head. Beside experts it is dense (see `_dense_layer`)."""
    head = replace(_dense_layer(target, "EAGLE"), fused_inputs=2)
    return DraftHead(head, head)


def eagle3_head(target: ModelSpec, vocab: int = EAGLE3_VOCAB) -> DraftHead:
    """EAGLE-3: in the first pass three hidden states of the target are made one (3h -> h); the layer projects queries,
    keys and values from that, or its own last output, beside the embedding (2h); an LM head of its own of `vocab`."""
    later = replace(_dense_layer(target, "EAGLE-3"), qkv_inputs=2, vocab=vocab, tie_embeddings=False)
    return DraftHead(replace(later, fused_inputs=3), later, own_lm_head=True)


def mtp_head(target: ModelSpec) -> DraftHead:
    """MTP: embedding and hidden state are made one (2h -> h), then one layer as the target's last, experts and latent
    attention included; the target's LM head. For more than one draft the layer is used again on its own output, as vLLM
    does with checkpoints that have one (DeepSeek-V3)."""
    layer = replace(_one_layer(target, "MTP"), fused_inputs=2)
    return DraftHead(layer, layer, native=True)


def medusa_matrices(target: ModelSpec, tensor_parallel: int = 1) -> tuple[Matrix, ...]:
    """The matrices of one of Medusa's heads: a residual block (h -> h) and an LM head, sharded as vLLM does: the block
    whole on each GPU, the LM head by vocabulary."""
    hidden = target.hidden
    return (
        Matrix("medusa_block", hidden, hidden, 1),
        Matrix("medusa_lm_head", hidden, share(target.vocab, tensor_parallel), 1),
    )


def medusa_weight_bytes(target: ModelSpec, heads: int, tensor_parallel: int = 1) -> int:
    """Bytes of so many heads on each GPU, in BF16."""
    return heads * sum(matrix.weights for matrix in medusa_matrices(target, tensor_parallel)) * ACTIVATION_BYTES


def _dense_layer(target: ModelSpec, method: str) -> ModelSpec:
    """A layer with the target's attention and a dense FFN: the target's own width, or where all its layers have experts
    and no width is known, that of the experts that a token passes."""
    ffn, moe = target.ffn, target.moe
    if not ffn and moe is not None:
        ffn = moe.top_k * moe.moe_ffn + moe.shared_width
    return replace(_one_layer(target, method), ffn=ffn, moe=None, qk_norm=False, native_quant=None, bf16_layers=())


def _one_layer(target: ModelSpec, method: str) -> ModelSpec:
    """One layer of the target, with its experts if it has any, and full attention whatever windows it has."""
    moe = None if target.moe is None else replace(target.moe, first_k_dense=0)
    name = f"{target.name} {method} head"
    return replace(target, name=name, layers=1, moe=moe, window_layers=0, sliding_window=0, bf16_layers=())
