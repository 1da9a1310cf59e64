"""What attention takes: decodes from the totals of their contexts, prefill chunks one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cost_models.architecture import pair_flops
from cost_models.gpu import GpuSpec
from cost_models.memory import kv_layer_bytes
from cost_models.model import ModelSpec

_SECOND = 1e9
Chunks = tuple[tuple[int, int], ...]


class DecodeLaw(NamedTuple):
    """Nanoseconds of a step's decodes: `launch`, and each of the others times its total.

    `full` is a key in the layers with full attention, `window` in those with a window, `each` a decode.
    """

    launch: float
    full: float
    window: float
    each: float


@dataclass(frozen=True, slots=True)
class LayersLaw:
    """Nanoseconds in all layers of one attention kind.

    `pair` is the arithmetic of a (query, key) pair, `key` the read of a key, `serial` the time in which a
    single thread block passes a key.
    """

    pair: float
    key: float
    serial: float


@dataclass(frozen=True, slots=True)
class PrefillLaw:
    """Nanoseconds of prefill attention. `windowed` is None without sliding windows.

    `earlier` is for a key computed before the chunk: MLA projects it up from the latent again.
    """

    launch: float
    earlier: float
    full: LayersLaw
    windowed: LayersLaw | None
    window: int

    def ns(self, chunks: Chunks) -> float:
        """The time of all chunks in one kernel a layer.

        They share the GPU, so their work adds up; but the longest takes at least as long as a thread block
        that passes its keys one after the other, which is what bounds a short chunk on a long context.
        """
        work = longest = 0.0
        full, windowed, earlier = self.full, self.windowed, self.earlier
        for tokens, context in chunks:
            keys = tokens + context
            arithmetic = tokens * (keys + context + 1) // 2 * full.pair
            traffic = keys * full.key
            one = (arithmetic if arithmetic > traffic else traffic) + context * earlier
            path = keys * full.serial
            if windowed is not None:
                seen = min(keys, tokens + self.window - 1)
                pairs = window_pairs(tokens, context, self.window)
                one += max(pairs * windowed.pair, seen * windowed.key)
                path += seen * windowed.serial
            work += one
            if path > longest:
                longest = path
        return self.launch + (work if work > longest else longest)


def window_pairs(tokens: int, context: int, window: int) -> int:
    """(query, key) pairs of a chunk whose queries see themselves and at most window - 1 tokens before."""
    growing = min(tokens, max(0, window - context))
    return growing * context + growing * (growing + 1) // 2 + (tokens - growing) * window


def decode_law(model: ModelSpec, gpu: GpuSpec, tensor_parallel: int, kv_cache: str) -> DecodeLaw:
    """The law of decodes: a flat time, then the longer of reading their contexts and the arithmetic."""
    kernel = gpu.decode_attention
    size = kv_layer_bytes(model, kv_cache, tensor_parallel)
    compute = gpu.peak(kv_cache) * kernel.flops_share(gpu.compute_type(kv_cache))
    key = _SECOND * max(size / (gpu.hbm_bandwidth * kernel.bandwidth), key_flops(model, tensor_parallel) / compute)
    return DecodeLaw(
        launch=model.layers * kernel.launch_ns,
        full=model.full_layers * key,
        window=model.window_layers * key,
        each=model.layers * key * gpu.decode_extra_tokens,
    )


def prefill_law(model: ModelSpec, gpu: GpuSpec, tensor_parallel: int, kv_cache: str) -> PrefillLaw:
    """The law of prefill chunks."""
    kernel = gpu.prefill_attention
    compute = gpu.peak(kv_cache) * kernel.flops_share(gpu.compute_type(kv_cache))
    pair = _SECOND * pair_flops(model, tensor_parallel) / compute
    size = kv_layer_bytes(model, kv_cache, tensor_parallel)
    key = _SECOND * size / (gpu.hbm_bandwidth * kernel.bandwidth)

    def layers_law(layers: int) -> LayersLaw:
        return LayersLaw(layers * pair, layers * key, layers * gpu.prefill_key_ns)

    return PrefillLaw(
        launch=model.layers * kernel.launch_ns,
        earlier=model.layers * _SECOND * _up_projection_flops(model, tensor_parallel) / compute,
        full=layers_law(model.full_layers),
        windowed=layers_law(model.window_layers) if model.window_layers else None,
        window=model.sliding_window,
    )


def key_flops(model: ModelSpec, tensor_parallel: int) -> int:
    """FLOPs of one decode with one key in one layer. MLA works on the latent itself, for each head."""
    if model.mla is None:
        return pair_flops(model, tensor_parallel)
    return 2 * (model.heads // tensor_parallel) * (model.mla.latent + model.mla.kv_lora_rank)


def _up_projection_flops(model: ModelSpec, tensor_parallel: int) -> int:
    """FLOPs that turn the cached latent of one token into the keys and values of the heads, one layer; 0
    without MLA."""
    if model.mla is None:
        return 0
    heads = model.heads // tensor_parallel
    return 2 * model.mla.kv_lora_rank * heads * (model.mla.qk_nope_head_dim + model.mla.v_head_dim)
