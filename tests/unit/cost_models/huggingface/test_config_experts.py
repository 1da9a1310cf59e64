"""Experts under the names of the families of models, and which layers have some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cost_models import CostModelError, Moe, parameters
from tests.unit.cost_models.huggingface.test_config_keys import load

ERNIE = {
    "model_type": "ernie4_5_moe",
    "num_hidden_layers": 28,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 103424,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1,
    "moe_num_shared_experts": 2,
}


def test_ernie_is_a_mixture_of_experts_of_its_published_size(tmp_path: Path) -> None:
    """ERNIE-4.5-21B-A3B; the defaults of its class say the same as the keys."""
    found = load(tmp_path, **ERNIE)
    assert found.moe == Moe(experts=64, top_k=6, moe_ffn=1536, shared_experts=2, first_k_dense=1)
    assert parameters(found).total / 1e9 == pytest.approx(21.8, abs=0.3)
    left_out = {key: None for key in ERNIE if key.startswith("moe_") and key != "moe_intermediate_size"}
    kept = {key: value for key, value in ERNIE.items() if key not in left_out}
    assert load(tmp_path, **kept).moe == found.moe


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, Moe(8, 2, 14336)),
        ({"num_experts": 8, "moe_topk": 2, "moe_intermediate_size": 512}, Moe(8, 2, 512)),
        ({"moe_num_experts": 8, "moe_top_k": 2, "expert_ffn_hidden_size": 512}, Moe(8, 2, 512)),
        # Hunyuan: a number a layer.
        (
            {
                "num_experts": 8,
                "moe_topk": [2] * 32,
                "moe_intermediate_size": [512] * 32,
                "num_shared_expert": [1] * 32,
            },
            Moe(8, 2, 512, 1),
        ),
        # Qwen2-MoE and Granite: the width of the shared experts together.
        (
            {
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 2048,
            },
            Moe(8, 2, 512, 4),
        ),
        (
            {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "share_expert_dim": 700},
            Moe(8, 2, 512, 1, shared_ffn=700),
        ),
        # DeepSeek, GLM, Kimi: dense layers first.
        (
            {
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 512,
                "first_k_dense_replace": 3,
                "n_shared_experts": 1,
            },
            Moe(8, 2, 512, 1, 3),
        ),
        # Llama 4, Qwen and ERNIE: experts in the last layer of each period.
        (
            {"num_local_experts": 8, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2},
            Moe(8, 1, 14336, 0, 16, interleaved=True),
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2, "mlp_only_layers": [31]},
            Moe(8, 2, 14336, 0, 17, interleaved=True),
        ),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1]}, Moe(8, 2, 14336, 0, 2)),
        # A list of layers, or a 1 for each that has experts.
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layers": list(range(1, 32))}, Moe(8, 2, 14336, 0, 1)),
        ({"moe_num_experts": 8, "moe_top_k": 2, "moe_layers_enum": "4,5,6"}, Moe(8, 2, 14336, 0, 29, interleaved=True)),
        (
            {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_layer_freq": [0] + [1] * 31},
            Moe(8, 2, 14336, 0, 1),
        ),
        # ERNIE's last layer with experts.
        (
            {"moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 2, "moe_layer_end_index": 30},
            Moe(8, 2, 14336, 0, 3, interleaved=True),
        ),
    ],
)
def test_families(tmp_path: Path, keys: dict[str, Any], expected: Moe) -> None:
    found = load(tmp_path, **keys)
    assert found.moe == expected
    assert found.notes == ()
    assert found.moe_layers + found.dense_layers == 32


def test_the_dense_layers_of_llama_4_have_a_width_of_their_own(tmp_path: Path) -> None:
    keys = {"model_type": "llama4_text", "attention_chunk_size": None, "interleave_moe_layer_step": 2}
    found = load(tmp_path, **keys, num_local_experts=8, num_experts_per_tok=1, intermediate_size_mlp=16384)
    assert (found.ffn, found.moe) == (16384, Moe(8, 1, 14336, 1, 16, interleaved=True))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts": 8}, "num_experts_per_tok: missing"),
        ({"num_experts": 8, "moe_topk": [1, 2]}, "moe_topk: a model whose layers have different experts"),
        ({"num_experts": 8, "moe_topk": 2, "mlp_only_layers": [32]}, "mlp_only_layers: expected layers from 0 to 31"),
        ({"num_experts": 8, "moe_topk": 2, "mlp_only_layers": "first"}, "mlp_only_layers: expected a list of layers"),
        ({"num_experts": 8, "moe_topk": 2, "moe_layer_freq": [1]}, "moe_layer_freq: expected 32 entries"),
        ({"num_experts": "many"}, "num_experts: expected an integer of at least 0, found 'many'"),
    ],
)
def test_mistakes(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CostModelError) as caught:
        load(tmp_path, **keys)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")
