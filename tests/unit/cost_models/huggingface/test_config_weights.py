"""Formats of checkpoints, and the modules of which layers they leave in BF16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models import CostModelError, ModelSpec, parameters
from tests.costs import weight_bytes
from tests.unit.cost_models.huggingface.test_config_keys import load

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "n_shared_experts": 1}


def group(kind: str, bits: int) -> dict[str, Any]:
    return {"weights": {"type": kind, "num_bits": bits}, "targets": ["Linear"]}


def stored(folder: Path, quantisation: dict[str, Any], **changes: Any) -> ModelSpec:
    return load(folder, quantization_config=quantisation, **changes)


@pytest.mark.parametrize(
    ("quantisation", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "auto-round", "bits": 4}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": group("int", 4)}}, "int4"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": group("float", 8), "b": group("float", 8)}},
            "fp8",
        ),
    ],
)
def test_formats(tmp_path: Path, quantisation: dict[str, Any], expected: str) -> None:
    found = stored(tmp_path, quantisation)
    assert (found.native_quant, found.bf16_layers, found.notes) == (expected, (), ())


@pytest.mark.parametrize(
    ("key", "listed", "expected"),
    [
        # Meta's FP8: attention and the first layer.
        (
            "modules_to_not_convert",
            ["model.layers.0", *(f"model.layers.{number}.self_attn" for number in range(1, 32)), "lm_head"],
            {"qkv_proj": 32, "o_proj": 32, "gate_up_proj": 1, "down_proj": 1},
        ),
        ("modules_to_not_convert", ["model.layers.0.self_attn.q_proj"], {"qkv_proj": 1}),
        ("modules_to_not_convert", ["self_attn"], {"qkv_proj": 32, "o_proj": 32}),
        ("modules_to_not_convert", ["gate", "lm_head", "model.layers.3.mlp.gate"], {}),  # routers
        ("modules_to_not_convert", ["model.layers.1", "model.layers.32"], dict.fromkeys(("qkv_proj", "o_proj"), 1)),
        ("ignored_layers", ["model.layers.0.mlp.down_proj"], {"down_proj": 1}),
        ("ignore", ["re:.*self_attn.*", "re:.*lm_head"], {"qkv_proj": 32, "o_proj": 32}),
        ("ignore", [r"re:model\.layers\.(0|31)\..*down_proj$"], {"down_proj": 2}),
        ("exclude_modules", ["*lm_head*", "model.layers.0.self_attn*"], {"qkv_proj": 1, "o_proj": 1}),
    ],
)
def test_modules_left_in_bf16(tmp_path: Path, key: str, listed: list[str], expected: dict[str, int]) -> None:
    found = stored(tmp_path, {"quant_method": "fp8", key: listed})
    if "model.layers.1" in listed:
        expected = expected | {"gate_up_proj": 1, "down_proj": 1}
    assert dict(found.bf16_layers) == expected
    counted = parameters(found)
    wide = found.hidden * (found.heads + 2 * found.kv_heads) * found.head_dim * expected.get("qkv_proj", 0)
    wide += found.hidden * found.heads * found.head_dim * expected.get("o_proj", 0)
    wide += found.hidden * found.ffn * (2 * expected.get("gate_up_proj", 0) + expected.get("down_proj", 0))
    rest = counted.embedding + counted.lm_head + counted.other
    assert weight_bytes(found) == counted.total + rest + wide


def test_experts_and_shared_experts(tmp_path: Path) -> None:
    listed = ["model.layers.2.mlp.experts", "re:.*shared_experts.*", "model.layers.0.mlp"]
    found = stored(tmp_path, {"quant_method": "fp8", "ignore": listed}, **EXPERTS, first_k_dense_replace=1)
    assert dict(found.bf16_layers) == {
        "gate_up_proj": 1,
        "down_proj": 1,
        "shared_gate_up_proj": 31,
        "shared_down_proj": 31,
        "experts": 1,
    }


def test_latent_attention(tmp_path: Path) -> None:
    mla = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    quantisation = {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["kv_b_proj", "q_a_proj"]}
    found = stored(tmp_path, quantisation, **mla)
    assert dict(found.bf16_layers) == {"qkv_a_proj": 32, "kv_b_proj": 32}


def test_mxfp4_is_of_experts_alone(tmp_path: Path) -> None:
    listed = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    assert stored(tmp_path, {"quant_method": "mxfp4", "modules_to_not_convert": listed}, **EXPERTS).bf16_layers == ()


def test_names_in_other_keys(tmp_path: Path) -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "dynamic": {r"-:.*down_proj": {}, r"+:.*": {"bits": 4}}}
    assert stored(tmp_path, gptq).bf16_layers == (("down_proj", 32),)
    rounded = {"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.0.mlp": {"bits": 16}}}
    assert dict(stored(tmp_path, rounded).bf16_layers) == {"gate_up_proj": 1, "down_proj": 1}


def test_names_below_a_language_model(tmp_path: Path) -> None:
    listed = ["model.language_model.layers.0.self_attn.o_proj", "language_model.model.layers.1.self_attn.o_proj"]
    assert stored(tmp_path, {"quant_method": "fp8", "ignore": listed}).bf16_layers == (("o_proj", 2),)


def test_modelopts_own_file_beside_the_config(tmp_path: Path) -> None:
    quantisation = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantisation}))
    found = load(tmp_path)
    assert found.native_quant == "fp8"
    assert "kv_cache_quant_algo: the checkpoint has scales for a quantised KV cache" in found.notes[0]


@pytest.mark.parametrize(
    ("quantisation", "message"),
    [
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            "quant_algo: weights of the kind NVFP4 are not supported",
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method: expected one of auto-round, awq, "),
        ({"bits": 4}, "quant_method: missing"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": group("float", 4)}},
            "config_groups.group_0.weights.num_bits: weights of the kind float4 are not supported; take",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": group("float", 8), "b": group("int", 4)}},
            "config_groups: layers in several formats (fp8, int4) are not supported",
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups: expected at least one group"),
        ({"quant_method": "fp8", "ignore": ["re:(("]}, "ignore: 're:((' is not a regular expression"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, "ignore: expected a list of texts"),
    ],
)
def test_mistakes_and_what_is_not_priced(tmp_path: Path, quantisation: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError) as caught:
        stored(tmp_path, quantisation)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: quantization_config.{message}")
    assert "\n" not in str(caught.value)
