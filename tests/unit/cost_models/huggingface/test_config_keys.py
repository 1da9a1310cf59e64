"""Keys of a `config.json` that are not read: refused, passed over, or noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models import CostModelError, ModelSpec, load_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
#: Keys of models whose layers do not all have plain attention, with the key in the error.
HYBRIDS: dict[str, tuple[dict[str, Any], str]] = {
    "bamba": ({"attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_state": 128}, "attn_layer_indices"),
    "deepseek_v32": ({"kv_lora_rank": 512, "index_topk": 2048, "index_n_heads": 64}, "index_topk"),
    "falcon_h1": ({"head_dim": 128, "mamba_d_state": 256, "mamba_d_ssm": 4096}, "mamba_d_state"),
    "gemma3n_text": ({"num_kv_shared_layers": 15, "sliding_window": 512}, "num_kv_shared_layers"),
    "gemma4_text": ({"global_head_dim": 512, "num_kv_shared_layers": 18}, "global_head_dim"),
    "granitemoehybrid": ({"layer_types": ["mamba", "attention"] * 16, "mamba_d_state": 128}, "mamba_d_state"),
    "jamba": ({"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16}, "attn_layer_period"),
    "kimi_linear": ({"kv_lora_rank": 512, "linear_attn_config": {"kda_layers": [1, 2, 3]}}, "linear_attn_config"),
    "mamba2": ({"state_size": 128, "num_attention_heads": None}, "state_size"),
    "minimax_m1": ({"attn_type_list": [0, 0, 0, 1] * 8, "num_local_experts": 32}, "model_type"),
    "minimax_text": ({"attn_type_list": [0, 0, 0, 1] * 8}, "attn_type_list"),
    "nemotron_h": ({"hybrid_override_pattern": "M-M*-M-", "ssm_state_size": 128}, "hybrid_override_pattern"),
    "phi4flash": ({"mb_per_layer": 2, "mamba_d_state": 16, "sliding_window": 512}, "mb_per_layer"),
    "qwen3_5_text": ({"layer_types": ["linear_attention"] * 32}, "model_type"),
    "recurrent": ({"num_recurrent_layers": 4}, "num_recurrent_layers"),
    "of tomorrow": ({"mixture_of_experts_count": 64}, "mixture_of_experts_count"),
    "also of tomorrow": ({"long_window_attention": 4096}, "long_window_attention"),
}


def load(folder: Path, **changes: Any) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return load_model(str(folder))


@pytest.mark.parametrize("kind", HYBRIDS)
def test_models_of_other_layers_are_refused_by_the_key_that_tells(tmp_path: Path, kind: str) -> None:
    keys, named = HYBRIDS[kind]
    with pytest.raises(CostModelError) as caught:
        load(tmp_path, **{"model_type": kind, **keys})
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'config.json'}: {named}: a model with ")
    assert "is not supported; choose a model whose layers all have plain attention" in text
    assert "\n" not in text


@pytest.mark.parametrize("kind", ["qwen3_next", "mamba", "lfm2", "deepseek_v4", "gemma4"])
def test_a_model_type_tells_enough(tmp_path: Path, kind: str) -> None:
    """A file may leave all else to the defaults of its class."""
    with pytest.raises(CostModelError, match=rf"model_type: a model with .*\({kind}\) is not supported"):
        load(tmp_path, model_type=kind)


def test_values_that_turn_a_thing_off_are_no_reason_to_refuse(tmp_path: Path) -> None:
    off = {"index_topk": None, "mamba_d_state": 0, "num_kv_shared_layers": 0, "use_cla": False, "block_configs": []}
    plain = load(tmp_path)
    assert load(tmp_path, **off) == plain
    assert load(tmp_path, attn_type_list=[1] * 32) == plain
    dense = {"num_experts": 0, "moe_intermediate_size": 1407, "first_k_dense_replace": 1, "expert_capacity": 2}
    assert load(tmp_path, **dense).moe is None


def test_keys_without_effect_are_passed_over(tmp_path: Path) -> None:
    keys = {
        "bos_token_id": 1,
        "rope_scaling": {"type": "yarn"},
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "transformers_version": "4.57.1",
        "use_cache": True,
        "router_aux_loss_coef": 0.001,
        "num_beam_groups": 1,
        "logit_scale": 0.0625,
    }
    assert load(tmp_path, **keys) == load(tmp_path)
    assert load(tmp_path, **keys).notes == ()


def test_what_is_unknown_is_noted(tmp_path: Path) -> None:
    notes = load(tmp_path, model_type="llama_next", quaternion_mode="fast", vision_config={"depth": 24}).notes
    path = tmp_path / "config.json"
    assert notes == (
        f"{path}: the language model alone is simulated, without the weights of vision_config",
        f"{path}: model_type llama_next is not known here: it is read as a decoder like Llama",
        f"{path}: unknown keys, assumed to have no effect: quaternion_mode",
    )
    many = load(tmp_path, **{f"odd_{number}": number + 1 for number in range(9)}).notes
    assert many[0].endswith("odd_4, odd_5 and 3 more")


def test_layers_without_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="num_hidden_layers: expected an integer of at most 10000"):
        load(tmp_path, num_hidden_layers=10**9, num_experts=8, num_experts_per_tok=2)
