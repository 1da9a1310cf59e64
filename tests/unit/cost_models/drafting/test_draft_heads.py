"""Heads that draft: their parameters beside those of published checkpoints, and the memory that they take."""

from __future__ import annotations

import pytest

from cost_models import (
    CostModelError,
    ExpertSplit,
    eagle3_head,
    eagle_head,
    kv_bytes_per_token,
    load_gpu,
    load_model,
    medusa_weight_bytes,
    mtp_head,
    parameters,
)
from cost_models.drafting.heads import medusa_matrices
from cost_models.roofline.architecture import layer_matrices
from tests.costs import kv_capacity

LLAMA, DEEPSEEK, GPT_OSS = load_model("llama-3.1-8b"), load_model("deepseek-v3"), load_model("gpt-oss-120b")
ONE = ExpertSplit()
HIDDEN, LAYER = 4096, 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
NORMS = 3 * HIDDEN


def test_eagle_is_a_layer_and_a_matrix_before_it() -> None:
    numbers = 2 * HIDDEN * HIDDEN + LAYER + NORMS
    assert eagle_head(LLAMA).weight_bytes("auto", 1, ONE) == 2 * numbers
    assert numbers == pytest.approx(0.25e9, rel=0.01)  # EAGLE-LLaMA3.1-Instruct-8B


def test_eagle_3_has_wider_queries_three_inputs_and_its_own_lm_head() -> None:
    head = eagle3_head(LLAMA)
    numbers = 3 * HIDDEN * HIDDEN + LAYER + HIDDEN * (4096 + 2 * 1024) + 32_000 * HIDDEN + NORMS
    assert head.weight_bytes("fp8", 1, ONE) == 2 * numbers  # in BF16 for any target
    assert 2 * numbers == pytest.approx(850e6, rel=0.01)  # EAGLE3-LLaMA3.1-Instruct-8B, pytorch_model.bin
    assert eagle3_head(LLAMA, 128_256).weight_bytes("auto", 1, ONE) - 2 * numbers == 2 * 96_256 * HIDDEN
    operators = [matrix.operator for matrix in layer_matrices(head.later)]
    assert "fuse_inputs" not in operators


def test_mtp_is_a_layer_of_the_target_with_its_experts() -> None:
    head = mtp_head(DEEPSEEK)
    counted = parameters(head.first)
    # The DeepSeek-V3 repository: 11.5B parameters of its own, embedding and output head (0.9B each) shared.
    assert counted.total - counted.embedding - counted.lm_head == pytest.approx(11.5e9, rel=0.01)
    own = counted.attention + counted.dense_ffn + counted.experts
    assert head.weight_bytes("auto", 1, ONE) == own + 2 * counted.other  # FP8 layers, the rest in BF16
    split = ExpertSplit(8, whole=True)
    assert head.weight_bytes("auto", 8, split) < head.weight_bytes("auto", 1, ONE) / 6


def test_heads_for_experts_are_dense_and_see_the_whole_context() -> None:
    for head in (eagle_head(GPT_OSS), eagle3_head(GPT_OSS), mtp_head(GPT_OSS)):
        assert (head.first.layers, head.first.window_layers, head.first.sliding_window) == (1, 0, 0)
    assert eagle_head(GPT_OSS).first.moe is None
    assert eagle_head(GPT_OSS).first.ffn == 2880
    assert mtp_head(GPT_OSS).first.moe == GPT_OSS.moe


def test_the_matrix_before_the_layer_is_replicated() -> None:
    for model in (eagle_head(LLAMA).first, mtp_head(DEEPSEEK).first):
        matrices = [{m.operator: m.weights for m in layer_matrices(model, gpus)} for gpus in (1, 8)]
        assert matrices[0]["fuse_inputs"] == matrices[1]["fuse_inputs"] == 2 * model.hidden**2


def test_a_layer_of_kv_is_a_layers_part_of_the_targets() -> None:
    for target in (LLAMA, DEEPSEEK):
        for gpus in (1, 8):
            whole = kv_bytes_per_token(target, "fp8", gpus)
            for head in (eagle_head(target), mtp_head(target)):
                assert head.kv_bytes_per_token("fp8", gpus) * target.layers == whole


def test_medusas_heads_are_a_block_and_an_lm_head_each() -> None:
    assert medusa_weight_bytes(LLAMA, 3) == 2 * 3 * (HIDDEN * HIDDEN + HIDDEN * 128_256)
    assert [matrix.columns for matrix in medusa_matrices(LLAMA, 4)] == [HIDDEN, 128_256 // 4]


def test_a_drafter_takes_its_weights_from_kv_memory_and_its_kv_from_each_block() -> None:
    gpu, head = load_gpu("h100-sxm"), eagle_head(LLAMA)
    plain = kv_capacity(LLAMA, gpu)
    weights, token = head.weight_bytes("auto", 1, ONE), head.kv_bytes_per_token("auto", 1)
    drafted = kv_capacity(LLAMA, gpu, draft_bytes=weights, draft_token_bytes=token)
    assert plain.kv_bytes - drafted.kv_bytes == weights
    assert drafted.block_bytes == plain.block_bytes * 33 // 32
    assert drafted.blocks == drafted.kv_bytes // drafted.block_bytes - 1
    assert (drafted.draft_bytes, drafted.draft_token_bytes) == (weights, token)
    assert (plain.draft_bytes, plain.draft_token_bytes) == (0, 0)


def test_a_drafter_that_leaves_no_room_is_named() -> None:
    with pytest.raises(CostModelError, match=r"weights 15\.0 GiB, a drafter of 65\.2 GiB and activations"):
        kv_capacity(LLAMA, load_gpu("h100-sxm"), draft_bytes=70 * 10**9)
