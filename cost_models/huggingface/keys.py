"""The keys of a `config.json` that are not read: without effect, not supported, or unknown.

Of the keys that are not read, one whose name belongs to another architecture is an error unless its value disables it,
so that a new kind of model is not simulated as a plain decoder by mistake. Keys that are known to affect neither sizes
nor times are ignored, and all others are listed in a note.
"""

from __future__ import annotations

import re

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.huggingface import experts as config_experts

#: Keys that affect neither sizes nor times: numbers of tokens, scales, training, generation, bookkeeping, and the
#: choice of experts by routers.
_WITHOUT_EFFECT = re.compile(
    r"_.*|architectures|auto_map|model_type|name|torch_dtype|dtype|is_decoder|is_causal|pruned_heads|tokenizer_class|prefix"
    r"|.*_token(_id|_index|_ids)?|.*version|.*_implementation|use_cache|use_return_dict|return_dict.*|output_.*"
    r"|torchscript|.*(dropout|pdrop|drop_rate).*|.*(epsilon|eps)|init.*|.*_init(ializer)?(_.*)?|.*_(std|range|gain)|.*seed"
    r"|.*rope.*|.*rotary.*|max_sequence_length|original_max_position_embeddings|initial_context_length|seq_length"
    r"|max_seq_len|use_position_embedding.*|position_embedding_type|alibi.*|(hidden|activation)_(act|fn|function|type)"
    r"|hidden_activation|.*act_fn|swiglu_limit|.*(multiplier|scaling|scale|scalar|temperature|softcap|softcapping|clip)"
    r"|clip_qkv|scale_.*|use_scaled.*|.*logit_cap|pretraining_tp|tp_size|ep_size|chunk_size_feed_forward"
    r"|gradient_.*|recompute.*|fuse_.*|use_flash.*|.*bias|bias.*|.*layer_?norm.*|.*rmsnorm.*|norm.*|.*_norm(_type)?"
    r"|.*parallel_(residual|attn)|upcast.*|id2label|label2id|num_labels|problem_type|finetuning_task|classifier_.*"
    r"|task_specific_params|summary_.*|min_length|max_length|max_new_tokens|do_sample|early_stopping|num_beam.*"
    r"|num_return_sequences|top_k|top_p|typical_p|.*penalty|.*no_repeat_ngram_size|bad_words_ids|.*invalid_values"
    r"|exponential_decay.*|.*suppress_tokens|tie_encoder_decoder|cross_attention_hidden_size|.*mtp.*"
    r"|router_.*|.*(aux_loss|aux_free|z_loss).*|scoring_func|score_function|topk_method|topk_group|n_group|seq_aux"
    r"|routed_.*|.*_gate|(n|num)_expert_groups?|num_limited_groups|moe_layer_recompute|use_routing.*|route_.*|group_norm.*"
    r"|moe_(router|gate|gating|capacity|norm|group|grouped|token|use_hard|use_aux|dispatch|orthogonal|dropout|all).*"
)
#: Kinds of layers, by patterns of key names.
_ARCHITECTURE = (
    (r"mamba|ssm|^state_size$|rwkv|recurren|time_step|d_conv|conv_(kernel|dim|l_cache)|^expand$", "state-space layers"),
    (r"linear_attn|^linear_(key|value|num|conv)|lightning|delta_?net|kda|full_attention_interval", "linear attention"),
    (r"^index_|sparse|_nsa|^nsa|moba|dual_chunk", "sparse attention"),
    (r"attention_chunk", "chunked attention"),
    (r"kv_shared|share.*kv|cla_|use_cla|yoco|share_q", "layers that share keys and values"),
    (
        r"attn_layer|mb_per_layer|attn_type|block_types?$|block_configs|hybrid|mixer|layers_?block",
        "layers of several kinds",
    ),
    (r"layer_(pattern|types?|kinds?)|layers_(pattern|types)", "layers of several kinds"),
    (r"global_head_dim|num_global_key|^swa_|per_layer|altup|laurel", "layers of several sizes"),
    (r"cross_attention|encoder_(layers|attention|ffn)|decoder_layers", "an encoder, or cross-attention"),
    (r"compress_ratio|^hc_|engram|num_loops|total_ut", "layers of another kind"),
    (r"window|local_attention|global_attn", "attention windows under another name"),
    (r"lora_rank|latent", "latent projections of another kind"),
    (r"moe|expert", "experts under another name"),
)
#: Model types with such layers, whose files may leave these keys to the defaults of their classes.
_TYPES = {
    "state-space layers": (
        *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "mamba2"),
        *("nemotron_h", "phi4flash", "plamo2", "recurrent_gemma", "rwkv", "rwkv6", "rwkv7", "zamba", "zamba2"),
    ),
    "linear attention": (
        *("kimi_linear", "minimax", "minimax_m1", "minimax_text_01", "qwen3_next", "qwen3_5", "qwen3_5_text"),
        *("qwen3_5_moe", "qwen3_5_moe_text"),
    ),
    "sparse attention": ("deepseek_v32", "deepseek_v4", "glm_moe_dsa"),
    "layers that share keys and values": ("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"),
    "layers of several kinds": ("deci", "longcat_flash", "mimo_v2_flash", "nemotron-nas", "step3p5"),
    "cross-attention": ("mllama", "mllama_text_model"),
}
#: Keys of `_ARCHITECTURE` that are read where they have an effect.
_READ = config_experts.KEYS | {
    *("sliding_window", "sliding_window_pattern", "use_sliding_window", "max_window_layers", "layer_types"),
    *("attn_type_list", "q_lora_rank", "kv_lora_rank"),
}
PLAIN = "; choose a model whose layers all have plain attention"
_CHUNKED = "; the shipped llama-4-scout and llama-4-maverick, which have windows in its place, can be named instead"
#: Values that disable a feature.
_OFF: tuple[object, ...] = (None, False, 0, "", [], {})
_SHOWN = 6


def check_architecture(fields: Fields, kind: str) -> None:
    """Raise CostModelError with the key that shows an unsupported architecture, if there is one."""
    dense = config_experts.says_dense(fields)
    for key, value in fields.items():
        name = key.lower()
        if key in _READ or value in _OFF or _WITHOUT_EFFECT.fullmatch(name):
            continue
        for pattern, what in _ARCHITECTURE:
            if re.search(pattern, name) and not (dense and re.search("moe|expert", name)):
                raise _not_modelled(fields, key, what)
    for what, kinds in _TYPES.items():
        if kind in kinds:
            raise _not_modelled(fields, "model_type", f"{what} ({kind})")


def unknown_keys(fields: Fields) -> tuple[str, ...]:
    """Return a note on the keys that were not read and are not known to have no effect."""
    unread = [key for key, value in fields.items() if value not in _OFF and not fields.was_read(key)]
    unknown = [key for key in unread if not _WITHOUT_EFFECT.fullmatch(key.lower())]
    if not unknown:
        return ()
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    names = ", ".join(unknown[:_SHOWN])
    return (f"{fields.where}: unknown keys, assumed to have no effect: {names}{more}",)


def _not_modelled(fields: Fields, key: str, what: str) -> CostModelError:
    advice = _CHUNKED if what.startswith("chunked") else PLAIN
    return fields.error(key, f"a model with {what} is not supported{advice}")
