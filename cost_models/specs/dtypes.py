"""Number formats: of weights by part of the model, of the KV cache, and of computation."""

from __future__ import annotations

from typing import NamedTuple

from cost_models.errors import unknown
from cost_models.specs.model import ModelSpec

#: Bits of a stored number, scales included: MXFP4 has an 8-bit scale for 32 numbers (OCP MX 1.0), INT4 (AWQ, GPTQ) 16
#: bits of scale and 4 of zero point for 128. Those of FP8 and INT8 are below 0.1% and left out.
BITS = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "int4": 4 + 20 / 128, "mxfp4": 4 + 8 / 32}
#: Bytes of an activation.
ACTIVATION_BYTES = 2

_WEIGHTS = ("auto", "bf16", "fp16", "fp8", "int8")
_KV_CACHES = ("auto", "bf16", "fp16", "fp8")


class WeightTypes(NamedTuple):
    """Storage formats of weights: the layers' matrices, routed experts, the rest (embedding, LM head, ...).

    `bf16_layers` has, by module, the number of layers in which the module is in BF16 instead.
    """

    linear: str
    experts: str
    rest: str
    bf16_layers: tuple[tuple[str, int], ...] = ()

    def kept(self, module: str) -> int:
        """Return the number of layers in which `module` is left in BF16."""
        return dict(self.bf16_layers).get(module, 0)


def weight_types(model: ModelSpec, weights: str) -> WeightTypes:
    """Return the formats that `weights` selects.

    An explicit format is that of every parameter in memory, as capacity is usually computed by hand: Llama-3.1-70B in
    FP8 has 70.6 GB. (FP8 checkpoints keep the embedding and the LM head in BF16, 2.1 GB more; the time of a step always
    counts the LM head in BF16.) "auto" is the format of the published checkpoint, by part: BF16, or `native_quant` for
    the layers with the rest in BF16, as in DeepSeek-V3 (FP8 layers) and gpt-oss (MXFP4 experts). Modules that the
    checkpoint leaves in BF16 stay so.
    """
    if weights not in _WEIGHTS:
        raise unknown("weight type", weights, _WEIGHTS)
    if weights != "auto":
        return WeightTypes(weights, weights, weights)
    native = model.native_quant
    if native is None:
        return WeightTypes("bf16", "bf16", "bf16")
    return WeightTypes("bf16" if native == "mxfp4" else native, native, "bf16", model.bf16_layers)


def kv_type(kv_cache: str) -> str:
    """Return the format that `kv_cache` selects; "auto" is BF16 for any format of the weights, as in vLLM."""
    if kv_cache not in _KV_CACHES:
        raise unknown("KV cache type", kv_cache, _KV_CACHES)
    return "bf16" if kv_cache == "auto" else kv_cache


def kv_number_bytes(kv_cache: str) -> int:
    """Return the bytes of one cached number."""
    return int(BITS[kv_type(kv_cache)]) // 8
