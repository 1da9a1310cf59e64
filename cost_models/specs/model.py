"""Specifications of models: the dimensions from which costs are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cost_models.errors import CostModelError

#: Modules of a layer that a quantised checkpoint may leave in BF16; the first five are those of attention.
MODULES = (
    *("qkv_proj", "qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj"),
    *("gate_up_proj", "down_proj", "shared_gate_up_proj", "shared_down_proj", "experts"),
)
#: Quantised formats of published checkpoints.
NATIVE_QUANTS = ("fp8", "int8", "int4", "mxfp4")


class Mla(NamedTuple):
    """Multi-head latent attention: keys and values of all heads come from one latent vector a token.

    `q_lora_rank` 0 means that queries are projected directly.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def latent(self) -> int:
        """Numbers cached per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts: each token uses `top_k` of `experts` and all `shared_experts`, each of width `moe_ffn`.

    `shared_ffn` is the width of the shared experts together if it is another one. The first `first_k_dense` layers have
    a dense FFN instead; if `interleaved`, that many layers spread over the depth.
    """

    experts: int
    top_k: int
    moe_ffn: int
    shared_experts: int = 0
    first_k_dense: int = 0
    shared_ffn: int = 0
    interleaved: bool = False

    @property
    def shared_width(self) -> int:
        """The width of the shared experts together."""
        return self.shared_ffn or self.shared_experts * self.moe_ffn


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer.

    `head_dim` is that of queries and keys; `ffn` is the width of a dense FFN, which has three matrices if `gated_ffn`
    and two if not. Of the `layers`, `window_layers` attend only to the last `sliding_window` tokens. With
    `chunked_attention` a token of these attends to its own chunk of that length instead; such layers are simulated with
    a window, which is exact within the first chunk. `native_quant` is the format of the weights in the published
    checkpoint (None: BF16), and `bf16_layers` has, by name in `MODULES`, the number of layers in which the module is in
    BF16 instead; `mtp_layers` is the number of additional layers for multi-token prediction. `source` is the origin of
    the dimensions, `notes` are for the user.

    Two fields are for heads that draft for another model: a matrix before the layers, which tensor parallelism
    replicates, combines `fused_inputs` vectors of the hidden size into one (0: no such matrix), and queries, keys and
    values are projected from `qkv_inputs` such vectors.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_position: int
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_ffn: bool = True
    moe: Moe | None = None
    mla: Mla | None = None
    sliding_window: int = 0
    window_layers: int = 0
    chunked_attention: bool = False
    native_quant: str | None = None
    bf16_layers: tuple[tuple[str, int], ...] = ()
    mtp_layers: int = 0
    source: str = ""
    notes: tuple[str, ...] = ()
    fused_inputs: int = 0
    qkv_inputs: int = 1

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise CostModelError(f"{self.name}: kv_heads ({self.kv_heads}) must divide heads ({self.heads})")
        if self.native_quant not in (None, *NATIVE_QUANTS):
            raise CostModelError(
                f"{self.name}: native_quant: expected {', '.join(NATIVE_QUANTS)} or nothing, "
                f"found {self.native_quant!r}"
            )
        for module, layers in self.bf16_layers:
            if module not in MODULES or self.native_quant is None or not 0 < layers <= self.layers:
                raise CostModelError(f"{self.name}: bf16_layers: {layers} layers of {module} cannot be left in BF16")
        windowed = self.window_layers > 0
        if not 0 <= self.window_layers <= self.layers or windowed != (self.sliding_window > 0):
            raise CostModelError(
                f"{self.name}: {self.window_layers} of {self.layers} layers cannot have a sliding window of "
                f"{self.sliding_window} tokens"
            )
        if self.moe is not None and not (self.moe.top_k <= self.moe.experts and self.moe.first_k_dense <= self.layers):
            raise CostModelError(f"{self.name}: top_k must not exceed the experts, nor first_k_dense the layers")

    @property
    def attention(self) -> str:
        """The kind of attention: mha, a KV head for each query head; gqa, shared KV heads; mla, one latent vector for
        all."""
        if self.mla is not None:
            return "mla"
        return "mha" if self.kv_heads == self.heads else "gqa"

    @property
    def full_layers(self) -> int:
        """Number of layers that attend to the whole context."""
        return self.layers - self.window_layers

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.moe is None else self.layers - self.moe.first_k_dense

    @property
    def dense_layers(self) -> int:
        """Number of layers with a dense FFN."""
        return self.layers - self.moe_layers
