"""A model's dimensions from a Hugging Face `config.json`."""

from __future__ import annotations

from pathlib import Path

from cost_models.documents import read_json
from cost_models.fields import Fields
from cost_models.model import Mla, ModelSpec, Moe

#: What the configuration classes of `transformers` assume where a config.json leaves a key out, by
#: model_type.
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
    "qwen2": {"attention_bias": True},
    "qwen2_moe": {"attention_bias": True},
}
_WITH_QK_NORM = ("gemma3_text", "qwen3", "qwen3_moe")
#: Model types whose FFN is two matrices. All other supported ones have a gate.
_WITHOUT_GATE = ("gpt2", "gpt_bigcode", "gpt_neox", "opt", "phi", "starcoder2")
#: Keys beside `text_config` that also hold for the language model.
_OF_THE_WHOLE = ("architectures", "dtype", "is_encoder_decoder", "quantization_config", "torch_dtype")
#: Keys of architectures whose layers this package cannot price.
_UNSUPPORTED = {
    "attention_chunk_size": "chunked attention",
    "attn_layer_period": "layers without attention",
    "full_attention_interval": "linear attention",
    "index_topk": "sparse attention",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
}

#: Model types that read a whole text at once, and generate none.
_ENCODERS = (
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "mobilebert"),
    *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta", "xlm-roberta-xl"),
)
#: Formats of weights without quantisation. Engines serve those of 32 bits in 16, and so does this package.
_DTYPES = ("bfloat16", "float16", "float32")


def model_from_config(path: Path) -> ModelSpec:
    """The model that the `config.json` at `path` describes, named after the folder it lies in.

    Raises CostModelError that names the file and, for a key that is missing or malformed, the key.
    """
    fields = _text_model(path)
    for key, what in _UNSUPPORTED.items():
        if fields.value(key)[1] is not None:
            raise fields.error(key, f"a model with {what} is not supported")
    kind = fields.text("model_type", default="")
    _check_decoder(fields, kind)
    _check_dtype(fields)
    layers = fields.integer("num_hidden_layers", "n_layer", "num_layers")
    heads = fields.integer("num_attention_heads", "n_head")
    hidden = fields.integer("hidden_size", "n_embd", "d_model")
    max_position = fields.integer("max_position_embeddings", "n_positions", "n_ctx")
    mla = _mla(fields)
    window, window_layers = _window(fields, layers, max_position)
    return ModelSpec(
        name=path.resolve().parent.name if path.name == "config.json" else path.stem,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if mla is not None else _kv_heads(fields, heads),
        head_dim=_head_dim(fields, mla, hidden, heads),
        ffn=_ffn(fields, kind, hidden),
        vocab=fields.integer("vocab_size"),
        max_position=max_position,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=fields.flag("attention_bias", default=False),
        qk_norm=kind in _WITH_QK_NORM,
        gated_ffn=kind not in _WITHOUT_GATE,
        moe=_moe(fields, kind),
        mla=mla,
        sliding_window=window,
        window_layers=window_layers,
        native_quant=_native_quant(fields),
        mtp_layers=fields.integer("num_nextn_predict_layers", default=0, least=0),
        source=str(path),
    )


def _text_model(path: Path) -> Fields:
    """The keys of the language model: of a multimodal model those under `text_config`."""
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("text_config"), dict):
        outer = {key: data[key] for key in _OF_THE_WHOLE if key in data}
        data, prefix = {**outer, **data["text_config"]}, "text_config."
    else:
        prefix = ""
    if isinstance(data, dict):
        data = {**_DEFAULTS.get(str(data.get("model_type")), {}), **data}
    return Fields(str(path), data, prefix)


def _check_decoder(fields: Fields, kind: str) -> None:
    """Raise if the model does not generate text token by token with causal attention."""
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
    return fields.integer("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden if kind == "gpt2" else None)


def _moe(fields: Fields, kind: str) -> Moe | None:
    key, found = fields.value("num_local_experts", "num_experts", "n_routed_experts")
    if found is None or found == 0:
        return None
    for step in ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"):
        if fields.value(step)[1] not in (None, 1):
            raise fields.error(step, "a model with dense and expert layers in turn is not supported")
    width = fields.integer("moe_intermediate_size", "intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, least=0)
    if kind == "qwen2_moe":
        shared_width = fields.integer("shared_expert_intermediate_size")
        if shared_width % width:
            what = f"not a multiple of the experts' width {width}"
            raise fields.error("shared_expert_intermediate_size", what)
        shared = shared_width // width
    experts = fields.integer(key)
    top_k = fields.integer("num_experts_per_tok", "experts_per_token")
    if top_k > experts:
        raise fields.error("num_experts_per_tok", f"{top_k} is more than the {experts} experts")
    return Moe(
        experts=experts,
        top_k=top_k,
        moe_ffn=width,
        shared_experts=shared,
        first_k_dense=fields.integer("first_k_dense_replace", default=0, least=0),
    )


def _mla(fields: Fields) -> Mla | None:
    if fields.value("kv_lora_rank")[1] is None:
        return None
    return Mla(
        q_lora_rank=fields.integer("q_lora_rank", default=0),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
    )


def _window(fields: Fields, layers: int, max_position: int) -> tuple[int, int]:
    """(tokens of the sliding window, layers that have it); (0, 0) where no layer's view is limited by it."""
    window = fields.integer("sliding_window", default=0, least=0)
    windowed = _window_layers(fields, layers)
    if not fields.flag("use_sliding_window", default=True) or not 0 < window < max_position:
        return 0, 0
    return (window, windowed) if windowed else (0, 0)


def _window_layers(fields: Fields, layers: int) -> int:
    """Layers that have the window, if the model has one."""
    kinds = fields.texts("layer_types")
    if kinds is not None:
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise fields.error("layer_types", f"layers of the kind {kind!r} are not supported")
        if len(kinds) != layers:
            raise fields.error("layer_types", f"expected {layers} entries, one a layer, found {len(kinds)}")
        return kinds.count("sliding_attention")
    if fields.value("use_sliding_window")[1] is not None:
        return max(0, layers - fields.integer("max_window_layers", default=0, least=0))
    # Every pattern-th layer sees everything; without a pattern, none does.
    pattern = fields.integer("sliding_window_pattern", default=0, least=0)
    return layers - (layers // pattern if pattern else 0)


def _native_quant(fields: Fields) -> str | None:
    quantisation = fields.section("quantization_config")
    if quantisation is None:
        return None
    method = quantisation.text("quant_method")
    if method in ("fp8", "mxfp4"):
        return method
    if method in ("awq", "gptq"):
        bits = quantisation.integer("bits")
        if bits != 4:
            raise quantisation.error("bits", f"expected 4, found {bits}")
        return "int4"
    if method == "compressed-tensors":
        return _compressed(quantisation)
    known = "awq, compressed-tensors, fp8, gptq, mxfp4"
    raise quantisation.error("quant_method", f"expected one of {known}, found {method!r}")


def _compressed(quantisation: Fields) -> str:
    """The weights' format of a compressed-tensors checkpoint, whose layers all have the same."""
    groups = quantisation.required_section("config_groups")
    weights = groups.required_section(min(groups.names(), default="group_0")).required_section("weights")
    name = f"{weights.text('type')}{weights.integer('num_bits')}"
    formats = {"float8": "fp8", "int8": "int8", "int4": "int4"}
    if name not in formats:
        raise weights.error("num_bits", f"weights of the kind {name} are not supported")
    return formats[name]
