"""Reader of a model's dimensions from a Hugging Face `config.json`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from cost_models.files.documents import read_json
from cost_models.files.fields import Fields
from cost_models.huggingface.experts import experts_of, sparse_layers
from cost_models.huggingface.keys import PLAIN, check_architecture, unknown_keys
from cost_models.huggingface.weights import Layers, stored_weights
from cost_models.specs.model import Mla, ModelSpec

#: Values that the configuration classes of `transformers` use for missing keys, by model_type.
_GEMMA: dict[str, object] = {"tie_word_embeddings": True, "head_dim": 256}
_DEFAULTS: dict[str, dict[str, object]] = {
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "sliding_window_pattern": 2},
    "gemma3_text": {
        **_GEMMA,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window_pattern": 6,
    },
    "llama4_text": {"attention_chunk_size": 8192, "num_local_experts": 16, "n_shared_experts": 1},
    "gpt2": {"tie_word_embeddings": True},
    "gpt_bigcode": {"tie_word_embeddings": True, "multi_query": True},
    "opt": {"tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window_pattern": 4},
    "ernie4_5": {"tie_word_embeddings": True},
    "ernie4_5_moe": {
        "tie_word_embeddings": True,
        "moe_k": 6,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
    },
    "qwen2": {"attention_bias": True},
    "qwen2_moe": {"attention_bias": True},
}
_WITH_QK_NORM = ("gemma3_text", "olmo2", "olmo3", "olmoe", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text")
#: Model types whose FFN has two matrices. All other supported ones have a gate.
_WITHOUT_GATE = ("gpt2", "gpt_bigcode", "gpt_neox", "nemotron", "opt", "phi", "starcoder2")
_QK_NORM_KEYS = ("use_qk_norm", "qk_layernorm", "qk_norm")
_MTP_KEYS = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_hidden_layers")
#: Model types whose files were compared with the classes of `transformers` or vLLM.
_FAMILIES = (
    *("llama", "mistral", "ministral", "mixtral", "gemma", "gemma2", "gemma3_text", "llama4_text", "gpt2"),
    *("gpt_bigcode", "gpt_neox", "gpt_oss", "opt", "phi", "phi3", "phimoe", "starcoder2", "qwen2", "qwen2_moe"),
    *("qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "deepseek_v2", "deepseek_v3"),
    *("kimi_k2", "glm4", "glm4_moe", "dots1", "bailing_moe", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense"),
    *("hunyuan_v1_moe", "minimax_m2", "mimo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe", "granitemoeshared"),
    *("cohere", "cohere2", "exaone4", "internlm3", "nemotron", "seed_oss", "smollm3"),
)
_MOST_LAYERS = 10_000
#: Keys outside of `text_config` that also apply to the language model.
_OF_THE_WHOLE = (
    *("architectures", "compression_config", "dtype", "is_encoder_decoder", "quantization_config", "torch_dtype"),
    "tie_word_embeddings",
)
#: Keys of the parts of a model for other inputs than text.
_OTHER_MODALITY = re.compile(r"(vision|visual|audio|speech).*_config|^visual$")
#: Model types that read a whole text at once and generate none.
_ENCODERS = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "mobilebert"),
    *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta", "xlm-roberta-xl"),
)
#: Formats of weights without quantisation. Engines serve 32-bit weights in 16 bits, and so does this package.
_DTYPES = ("bfloat16", "float16", "float32")


def model_from_config(path: Path) -> ModelSpec:
    """Return the model that the `config.json` at `path` describes, with the name of its folder.

    Raises CostModelError, which names the file and, for a missing or malformed key, the key.
    """
    fields = _text_model(path)
    kind = fields.text("model_type", default="")
    check_architecture(fields, kind)
    _check_kinds(fields)
    _check_decoder(fields, kind)
    _check_dtype(fields)
    layers = fields.integer("num_hidden_layers", "n_layer", "num_layers", most=_MOST_LAYERS)
    heads = fields.integer("num_attention_heads", "n_head")
    hidden = fields.integer("hidden_size", "n_embd", "d_model")
    max_position = fields.integer("max_position_embeddings", "n_positions", "n_ctx")
    mla, moe = _mla(fields), experts_of(fields, layers)
    sparse = None if moe is None else sparse_layers(fields, layers)
    shared = moe is not None and moe.shared_width > 0
    weights = stored_weights(_quantisation(fields, path), Layers(layers, sparse, shared, mla is not None))
    window, window_layers = _window(fields, layers, max_position)
    model = ModelSpec(
        name=path.resolve().parent.name if path.name == "config.json" else path.stem,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(fields, heads) if mla is None else heads,
        head_dim=_head_dim(fields, mla, hidden, heads),
        ffn=_ffn(fields, kind, hidden),
        vocab=fields.integer("vocab_size"),
        max_position=max_position,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=fields.flag("attention_bias", default=False),
        qk_norm=kind in _WITH_QK_NORM or any(fields.value(key)[1] is True for key in _QK_NORM_KEYS),
        gated_ffn=kind not in _WITHOUT_GATE,
        moe=moe,
        mla=mla,
        sliding_window=window,
        window_layers=window_layers,
        native_quant=weights.native,
        bf16_layers=weights.bf16_layers,
        mtp_layers=fields.integer(*_MTP_KEYS, default=0, least=0),
        source=str(path),
    )
    return replace(model, notes=(*weights.notes, *_other_notes(fields, kind), *unknown_keys(fields)))


def _text_model(path: Path) -> Fields:
    """Return the keys of the language model: for a multimodal model those under `text_config`."""
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("text_config"), dict):
        outer = {key: data[key] for key in data if key in _OF_THE_WHOLE or _OTHER_MODALITY.search(key)}
        data, prefix = {**outer, **data["text_config"]}, "text_config."
    else:
        prefix = ""
    if isinstance(data, dict):
        data = {**_DEFAULTS.get(str(data.get("model_type")), {}), **data}
    return Fields(str(path), data, prefix)


def _quantisation(fields: Fields, path: Path) -> Fields | None:
    """Return the file's section on quantised weights, or that of ModelOpt's separate file in the same folder."""
    for key in ("quantization_config", "compression_config"):
        section = fields.section(key)
        if section is not None:
            return section
    beside = path.with_name("hf_quant_config.json")
    if path.name != "config.json" or not beside.is_file():
        return None
    return Fields(str(beside), read_json(beside)).section("quantization")


def _check_decoder(fields: Fields, kind: str) -> None:
    """Raise CostModelError if the model does not generate text token by token with causal attention."""
    if kind in _ENCODERS:
        raise fields.error("model_type", f"{kind!r} is an encoder, which generates no text; a decoder is needed")
    for name in fields.texts("architectures") or ():
        if name.endswith("ForMaskedLM"):
            raise fields.error("architectures", f"{name} is an encoder, which generates no text; a decoder is needed")
    if fields.flag("is_encoder_decoder", default=False):
        raise fields.error("is_encoder_decoder", "a model with an encoder beside its decoder is not supported")


def _check_dtype(fields: Fields) -> None:
    key, found = fields.value("torch_dtype", "dtype")
    if found is not None and fields.text(key).removeprefix("torch.") not in _DTYPES:
        raise fields.error(key, f"expected one of {', '.join(_DTYPES)}, found {found!r}")


def _kv_heads(fields: Fields, heads: int) -> int:
    one = fields.flag("multi_query", default=False)
    found = fields.integer("num_key_value_heads", default=1 if one else heads)
    if heads % found:
        raise fields.error("num_key_value_heads", f"{found} does not divide the {heads} attention heads")
    return found


def _head_dim(fields: Fields, mla: Mla | None, hidden: int, heads: int) -> int:
    if mla is not None:
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim
    found = fields.integer("head_dim", default=hidden // heads)
    if fields.value("head_dim")[1] is None and hidden % heads:
        raise fields.error("head_dim", f"missing, and {heads} heads do not divide the hidden size {hidden}")
    return found


def _ffn(fields: Fields, kind: str, hidden: int) -> int:
    return fields.integer(
        "intermediate_size_mlp",
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        default=4 * hidden if kind == "gpt2" else None,
    )


def _mla(fields: Fields) -> Mla | None:
    if fields.value("kv_lora_rank")[1] is None:
        return None
    fields.value("num_key_value_heads")  # read, but without effect: MLA has one latent
    return Mla(
        q_lora_rank=fields.integer("q_lora_rank", default=0),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def _window(fields: Fields, layers: int, max_position: int) -> tuple[int, int]:
    """Return (tokens of the sliding window, layers that have it); (0, 0) if no layer is limited by it."""
    window = fields.integer("sliding_window", default=0, least=0)
    windowed = _window_layers(fields, layers)
    if not fields.flag("use_sliding_window", default=True) or not 0 < window < max_position:
        return 0, 0
    return (window, windowed) if windowed else (0, 0)


def _window_layers(fields: Fields, layers: int) -> int:
    """Return the number of layers with the window, if the model has one."""
    every = _pattern(fields, layers)
    used, first = fields.value("use_sliding_window")[1], fields.integer("max_window_layers", default=0, least=0)
    kinds = fields.texts("layer_types")
    if kinds is not None:
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise fields.error("layer_types", f"layers of the kind {kind!r} are not supported{PLAIN}")
        if len(kinds) != layers:
            raise fields.error("layer_types", f"expected {layers} entries, one a layer, found {len(kinds)}")
        return kinds.count("sliding_attention")
    return max(0, layers - first) if used is not None else every


def _pattern(fields: Fields, layers: int) -> int:
    """Return the layers with a window by a pattern: a text such as LLLG, or the length of a period whose last layer has
    none."""
    keys = ("sliding_window_pattern", "_sliding_window_pattern")
    found = fields.value(*keys)[1]
    if isinstance(found, str) and found:
        return sum(found[number % len(found)].upper() == "L" for number in range(layers))
    pattern = fields.integer(*keys, default=0, least=0)
    return layers - (layers // pattern if pattern else 0)


def _check_kinds(fields: Fields) -> None:
    """Raise CostModelError if some layers have another kind of attention (MiniMax: 1 is full, 0 linear)."""
    key, kinds = fields.value("attn_type_list")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != 1 for kind in kinds)):
        raise fields.error(key, f"a model with linear attention is not supported{PLAIN}")


def _other_notes(fields: Fields, kind: str) -> list[str]:
    """Return notes on the parts of a model that are not counted: other inputs, and unknown keys."""
    notes = []
    others = [key for key, _ in fields.items() if _OTHER_MODALITY.search(key) and fields.value(key)[1]]
    if others:
        notes.append(
            f"{fields.where}: the language model alone is simulated, without the weights of {', '.join(others)}"
        )
    if kind and kind not in _FAMILIES:
        notes.append(f"{fields.where}: model_type {kind} is not known here: it is read as a decoder like Llama")
    return notes
