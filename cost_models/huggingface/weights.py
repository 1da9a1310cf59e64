"""Reader of the format of a checkpoint's weights, from the `quantization_config` of its `config.json`.

The result also has the modules of layers that the checkpoint leaves in BF16.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import NamedTuple

from cost_models.files.fields import Fields

_FP8 = ("fp8", "fbgemm_fp8")
#: Formats by bits of an integer weight.
_INTEGERS = {4: "int4", 8: "int8"}
_INTEGER_METHODS = ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto-round", "auto_round", "intel/auto-round")
_METHODS = ("auto-round", "awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt", "mxfp4")
#: Keys of lists of modules that are not quantised.
_IGNORED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_INSTEAD = "take a checkpoint in BF16, FP8 or INT4 (without quantization_config the file is one in BF16)"
#: Names of a layer's modules in checkpoints, fused or separate, by their names in this package.
_NAMES = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "W_pack", "wqkv", "query_key_value", "c_attn"),
    "qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"),
    "q_b_proj": ("q_b_proj", "q_proj"),
    "kv_b_proj": ("kv_b_proj",),
    "o_proj": ("o_proj", "out_proj", "dense", "wo"),
    "gate_up_proj": ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "fc1", "dense_h_to_4h", "c_fc"),
    "down_proj": ("down_proj", "w2", "fc2", "dense_4h_to_h"),
}
_ATTENTION, _FFN = ("self_attn", "attn", "attention"), ("mlp", "feed_forward", "block_sparse_moe", "ffn")
_SHARED = ("shared_expert", "shared_experts")
_PREFIXES = ("model.", "", "model.language_model.", "language_model.model.")


class Layers(NamedTuple):
    """The layers of a model: all of them, those with experts (None without any), and whether attention is MLA."""

    number: int
    sparse: set[int] | None = None
    shared: bool = False
    mla: bool = False


class StoredWeights(NamedTuple):
    """The format of a checkpoint's weights, the number of layers in which each module is in BF16 instead, and notes."""

    native: str | None = None
    bf16_layers: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def stored_weights(section: Fields | None, layers: Layers) -> StoredWeights:
    """Return the format of the weights from the section on quantisation.

    Raises CostModelError for formats without a cost model.
    """
    if section is None:
        return StoredWeights()
    native = _format(section)
    patterns = _Patterns(section)
    kept = {
        module: sum(patterns.match(names) for names in by_layer)
        for module, by_layer in _modules(layers).items()
        if native != "mxfp4" or module == "experts"
    }
    scheme, quantised = section.value("kv_cache_scheme", "kv_cache_quant_algo")
    text = (
        f"{section.where}: {scheme}: the checkpoint has scales for a quantised KV cache, which is in BF16 all the same"
    )
    notes = (f"{text} unless model.kv_cache is fp8",) if quantised else ()
    return StoredWeights(native, tuple((module, count) for module, count in kept.items() if count), notes)


def _format(section: Fields) -> str:
    method = section.text("quant_method", default="modelopt" if section.has("quant_algo") else None).lower()
    if method in _FP8:
        return "fp8"
    if method == "mxfp4":
        return method
    if method in _INTEGER_METHODS:
        return _integer(section)
    if method == "compressed-tensors":
        return _compressed(section)
    if method in ("modelopt", "modelopt_fp4"):
        return _modelopt(section)
    raise section.error("quant_method", f"expected one of {', '.join(_METHODS)}, found {method!r}; {_INSTEAD}")


def _integer(section: Fields) -> str:
    bits = section.integer("bits")
    if bits not in _INTEGERS:
        raise section.error("bits", f"expected 4 or 8, found {bits}; {_INSTEAD}")
    return _INTEGERS[bits]


def _modelopt(section: Fields) -> str:
    algorithm = section.text("quant_algo")
    if algorithm.upper().startswith("FP8"):
        return "fp8"
    if algorithm.upper() in ("W4A16_AWQ", "INT4_AWQ"):
        return "int4"
    raise section.error("quant_algo", f"weights of the kind {algorithm} are not supported; {_INSTEAD}")


def _compressed(section: Fields) -> str:
    """Return the format of a compressed-tensors checkpoint's weights; all its groups of layers must have the same."""
    groups = section.required_section("config_groups")
    if not groups.names():
        raise section.error("config_groups", "expected at least one group")
    found: dict[str, str] = {}
    for name in groups.names():
        weights = groups.required_section(name).required_section("weights")
        kind = f"{weights.text('type', default='int')}{weights.integer('num_bits')}"
        formats = {"float8": "fp8", "int8": "int8", "int4": "int4"}
        if kind not in formats:
            raise weights.error("num_bits", f"weights of the kind {kind} are not supported; {_INSTEAD}")
        found[formats[kind]] = name
    if len(found) > 1:
        raise section.error("config_groups", f"layers in several formats ({', '.join(found)}) are not supported")
    return next(iter(found))


def _modules(layers: Layers) -> dict[str, list[tuple[str, ...]]]:
    """Return the names that a checkpoint may use for each module, for each layer that has it."""
    attention = ("qkv_a_proj", "q_b_proj", "kv_b_proj", "o_proj") if layers.mla else ("qkv_proj", "o_proj")
    sparse = layers.sparse or set()
    dense = [number for number in range(layers.number) if number not in sparse]
    found = {module: [_names(number, module, _ATTENTION) for number in range(layers.number)] for module in attention}
    for module in ("gate_up_proj", "down_proj"):
        found[module] = [_names(number, module, _FFN) for number in dense]
        if layers.shared:
            paths = [f"{ffn}.{shared}" for ffn in _FFN[:2] for shared in _SHARED]
            found[f"shared_{module}"] = [_names(number, module, paths) for number in sorted(sparse)]
    leaves = ("experts", "experts.0.gate_proj", "experts.0.w1", "experts.gate_up_proj")
    found["experts"] = [
        tuple(f"layers.{number}.{ffn}.{leaf}" for ffn in _FFN for leaf in leaves) for number in sorted(sparse)
    ]
    return found


def _names(layer: int, module: str, parents: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return tuple(f"layers.{layer}.{parent}.{name}" for parent in parents for name in _NAMES[module])


class _Patterns:
    """The matrices that a checkpoint lists as not quantised: names, parts, wildcards, and regular expressions.

    Engines differ in whether a name must match as a whole or in part. Here it must match whole parts between dots, so
    that `gate`, the router, does not match `gate_proj`.
    """

    def __init__(self, section: Fields) -> None:
        self._whole: set[str] = set()
        self._parts: list[str] = []
        self._expressions: list[re.Pattern[str]] = []
        for key, pattern in _listed(section):
            if pattern.startswith("re:") or "*" in pattern or "?" in pattern:
                self._expressions.append(_compiled(section, key, pattern))
            else:
                self._add(pattern.removesuffix(".weight"))

    def match(self, names: tuple[str, ...]) -> bool:
        """Return whether a module with one of those names is in the list."""
        return any(self._matches(name) for name in names)

    def _add(self, name: str) -> None:
        _, found, inside = name.partition("layers.")
        if found and name.split("layers.")[0] in _PREFIXES:
            self._whole.add(f"layers.{inside}")
        else:
            self._parts.append(f".{name}.")

    def _matches(self, name: str) -> bool:
        parts = name.split(".")
        if any(".".join(parts[: end + 1]) in self._whole for end in range(1, len(parts))):
            return True
        if any(part in f".{name}." for part in self._parts):
            return True
        return any(pattern.match(prefix + name) for pattern in self._expressions for prefix in _PREFIXES)


def _listed(section: Fields) -> Iterator[tuple[str, str]]:
    for key in _IGNORED:
        for pattern in section.texts(key) or ():
            yield key, pattern
    _, dynamic = section.value("dynamic")  # of GPTQModel: names after "-:" are not quantised
    for pattern in dynamic if isinstance(dynamic, dict) else ():
        if str(pattern).startswith("-:"):
            yield "dynamic", f"re:{str(pattern)[2:]}"
    _, extra = section.value("extra_config")  # of AutoRound: names with bits of their own
    for name, own in extra.items() if isinstance(extra, dict) else ():
        if isinstance(own, dict) and own.get("bits", 0) in (16, 32):
            yield "extra_config", str(name)


def _compiled(section: Fields, key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern))
    except re.error as error:
        raise section.error(key, f"{pattern!r} is not a regular expression: {error}") from None
