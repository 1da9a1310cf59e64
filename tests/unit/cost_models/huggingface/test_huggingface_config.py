"""Models from a Hugging Face `config.json`: the keys of each family, and errors about mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models import CostModelError, Mla, ModelSpec, Moe, kv_bytes_per_token, load_model, parameters
from cost_models.errors import InputError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "tie_word_embeddings": False,
}


def config(folder: Path, content: dict[str, Any], **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**content, **changes}))
    return path


def load(folder: Path, content: dict[str, Any], **changes: Any) -> ModelSpec:
    return load_model(str(config(folder, content, **changes)))


def test_llama_equals_the_shipped_model(tmp_path: Path) -> None:
    found, shipped = load(tmp_path, LLAMA), load_model("llama-3.1-8b")
    assert parameters(found) == parameters(shipped)
    assert (found.kv_heads, found.head_dim, found.max_position) == (8, 128, 131072)
    assert found.name == tmp_path.name
    assert found.source == str(tmp_path / "config.json")


def test_a_folder_stands_for_its_config(tmp_path: Path) -> None:
    config(tmp_path, LLAMA)
    assert load_model(str(tmp_path)).layers == 32


def test_null_means_missing(tmp_path: Path) -> None:
    found = load(tmp_path, LLAMA, model_type="mistral", head_dim=None, sliding_window=None)
    assert (found.head_dim, found.sliding_window, found.window_layers) == (128, 0, 0)


def test_mistral_has_its_window_in_every_layer(tmp_path: Path) -> None:
    found = load(tmp_path, LLAMA, model_type="mistral", sliding_window=4096)
    assert (found.sliding_window, found.window_layers) == (4096, 32)


def test_qwen_says_whether_the_window_is_used(tmp_path: Path) -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 65536, "max_window_layers": 28}
    del qwen["attention_bias"]
    unused = load(tmp_path, qwen, use_sliding_window=False)
    used = load(tmp_path, qwen, use_sliding_window=True)
    assert (unused.window_layers, unused.qkv_bias) == (0, True)
    assert (used.sliding_window, used.window_layers) == (65536, 4)


def test_qwen3_moe(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        LLAMA,
        model_type="qwen3_moe",
        hidden_size=2048,
        head_dim=128,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        num_key_value_heads=4,
        num_hidden_layers=48,
        vocab_size=151936,
        decoder_sparse_step=1,
    )
    assert found.moe == Moe(experts=128, top_k=8, moe_ffn=768)
    assert found.qk_norm
    assert parameters(found) == parameters(load_model("qwen3-30b-a3b"))


def test_mixtral_experts_have_the_width_of_the_ffn(tmp_path: Path) -> None:
    found = load(tmp_path, LLAMA, model_type="mixtral", vocab_size=32000, num_local_experts=8, num_experts_per_tok=2)
    assert parameters(found) == parameters(load_model("mixtral-8x7b"))


def test_deepseek(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "num_hidden_layers": 61,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 129280,
            "max_position_embeddings": 163840,
            "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
            "num_nextn_predict_layers": 1,
        },
    )
    shipped = load_model("deepseek-v3")
    assert found.mtp_layers == shipped.mtp_layers == 1
    assert (found.mla, found.moe, found.native_quant) == (shipped.mla, shipped.moe, "fp8")
    assert parameters(found) == parameters(shipped)


def test_deepseek_v2_lite_projects_queries_directly(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        LLAMA,
        model_type="deepseek_v2",
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    assert found.mla == Mla(0, 512, 128, 64, 128)
    # Queries, latent with rotary part, up to keys and values, output; 32 heads of 128 + 64.
    attention = 4096 * 32 * 192 + 4096 * 576 + 512 * 32 * 256 + 32 * 128 * 4096
    assert parameters(found).attention == 32 * attention


def test_gemma3_is_read_below_text_config_with_the_defaults_of_its_class(tmp_path: Path) -> None:
    text = {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    }
    found = load(tmp_path, {"model_type": "gemma3", "text_config": text})
    assert (found.vocab, found.max_position, found.tie_embeddings) == (262208, 131072, True)
    assert (found.full_layers, found.window_layers, found.sliding_window) == (10, 52, 1024)
    assert parameters(found).total / 1e9 == pytest.approx(27.0, rel=0.01)


def test_gpt_oss_lists_its_layers(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        LLAMA,
        model_type="gpt_oss",
        layer_types=["sliding_attention", "full_attention"] * 16,
        sliding_window=128,
        num_local_experts=32,
        num_experts_per_tok=4,
        quantization_config={"quant_method": "mxfp4"},
    )
    assert (found.sliding_window, found.window_layers, found.native_quant) == (128, 16, "mxfp4")


def test_opt_has_an_ffn_without_a_gate(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        {
            "model_type": "opt",
            "hidden_size": 5120,
            "ffn_dim": 20480,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
        },
    )
    assert (found.attention, found.gated_ffn, found.tie_embeddings) == ("mha", False, True)
    assert parameters(found).total / 1e9 == pytest.approx(12.85, rel=0.01)
    assert kv_bytes_per_token(found) == 819_200


def test_gpt2_has_keys_of_its_own(tmp_path: Path) -> None:
    sizes = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_ctx": 1024, "vocab_size": 50257}
    found = load(tmp_path, {"model_type": "gpt2", **sizes})
    assert (found.ffn, found.head_dim, found.max_position) == (3072, 64, 1024)
    assert parameters(found).total / 1e6 == pytest.approx(124, rel=0.01)


@pytest.mark.parametrize(
    ("quantisation", "expected"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
            },
            "fp8",
        ),
    ],
)
def test_quantised_checkpoints(tmp_path: Path, quantisation: dict[str, Any], expected: str) -> None:
    assert load(tmp_path, LLAMA, quantization_config=quantisation).native_quant == expected


@pytest.mark.parametrize("name", ["bfloat16", "torch.float16", "float32"])
@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_usual_dtypes_are_taken(tmp_path: Path, key: str, name: str) -> None:
    assert load(tmp_path, LLAMA, architectures=["LlamaForCausalLM"], **{key: name}) == load(tmp_path, LLAMA)


def test_a_step_of_one_means_experts_in_every_layer(tmp_path: Path) -> None:
    experts = {"num_local_experts": 16, "num_experts_per_tok": 1}
    found = load(tmp_path, LLAMA, **experts, interleave_moe_layer_step=1)
    assert found == load(tmp_path, LLAMA, **experts)
    llama4 = {**experts, "model_type": "llama4_text", "interleave_moe_layer_step": 1, "attention_chunk_size": None}
    assert load(tmp_path, LLAMA, **llama4).moe == Moe(experts=16, top_k=1, moe_ffn=14336, shared_experts=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: missing (or n_layer, num_layers)"),
        ({"hidden_size": "4096"}, "hidden_size: expected an integer of at least 1, found '4096'"),
        ({"num_attention_heads": True}, "num_attention_heads: expected an integer of at least 1, found True"),
        ({"vocab_size": 0}, "vocab_size: expected an integer of at least 1, found 0"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide the 32 attention heads"),
        ({"attention_bias": "no"}, "attention_bias: expected true or false, found 'no'"),
        ({"num_local_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok: 8 is more than the 4"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 32 entries, one a layer, found 1"),
        ({"layer_types": ["linear_attention"]}, "layer_types: layers of the kind 'linear_attention'"),
        ({"model_type": "bert"}, "model_type: 'bert' is an encoder, which generates no text"),
        ({"architectures": ["NewForMaskedLM"]}, "architectures: NewForMaskedLM is an encoder"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: a model with an encoder beside its decoder"),
        ({"torch_dtype": "complex64"}, "torch_dtype: expected one of bfloat16, float16, float32, found 'complex64'"),
        ({"dtype": "int7"}, "dtype: expected one of bfloat16, float16, float32, found 'int7'"),
        ({"torch_dtype": 16}, "torch_dtype: expected a text, found 16"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size: a model with chunked attention is not supported"),
        ({"model_type": "llama4_text"}, "attention_chunk_size: a model with chunked attention is not supported"),
        ({"index_topk": 2048}, "index_topk: a model with sparse attention is not supported"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config.quant_method: expected one"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 3}},
            "quantization_config.bits: expected 4 or 8, found 3",
        ),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = config(tmp_path, LLAMA, **changes)
    with pytest.raises(CostModelError) as caught:
        load_model(str(path))
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.json"
    with pytest.raises(InputError, match=r"nowhere\.json: cannot be read"):
        load_model(str(missing))
    broken = tmp_path / "broken.json"
    broken.write_text('{"hidden_size": 1,\n oops}')
    with pytest.raises(InputError, match=r"broken\.json:2:2: not valid JSON"):
        load_model(str(broken))
    broken.write_text("[1]")
    with pytest.raises(CostModelError, match=r"broken\.json: top level: expected a mapping, found a list"):
        load_model(str(broken))
