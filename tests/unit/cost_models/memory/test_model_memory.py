"""Weights, KV cache and activations of each GPU, and the blocks that fit beside one another."""

from __future__ import annotations

import dataclasses

import pytest

from cost_models import (
    CostModelError,
    blocks_for,
    kv_bytes,
    kv_bytes_per_token,
    load_gpu,
    load_model,
    parameters,
    stages_of,
)
from tests.costs import activation_bytes, kv_capacity, weight_bytes

LLAMA_8B, LLAMA_70B = load_model("llama-3.1-8b"), load_model("llama-3.1-70b")
DEEPSEEK, GPT_OSS = load_model("deepseek-v3"), load_model("gpt-oss-120b")
H100 = load_gpu("h100-sxm")


def test_an_explicit_format_is_that_of_every_parameter() -> None:
    total = parameters(LLAMA_70B).total
    assert [weight_bytes(LLAMA_70B, name) for name in ("auto", "bf16", "fp16")] == [2 * total] * 3
    assert [weight_bytes(LLAMA_70B, name) for name in ("fp8", "int8")] == [total] * 2


def test_auto_is_the_published_checkpoint() -> None:
    counted = parameters(DEEPSEEK)
    wide = counted.embedding + counted.lm_head + counted.other
    assert weight_bytes(DEEPSEEK) == counted.total + wide
    # 4.25 bits an expert weight, padded, and the rest in BF16: as vLLM logs it (vllm#23278; 0.19 on an A100).
    assert weight_bytes(GPT_OSS) / 2**30 == pytest.approx(65.97, rel=4e-3)
    assert weight_bytes(load_model("gpt-oss-20b")) / 2**30 == pytest.approx(13.72, rel=5e-3)


def test_mxfp4_experts_are_padded_when_they_are_loaded() -> None:
    """Hidden size to a multiple of 256, the width on a GPU to one of 128: 60.8 GiB in the checkpoint's card."""
    moe, experts = GPT_OSS.moe, parameters(GPT_OSS).experts
    assert moe is not None
    padding = 3072 * 2944 / 2880**2
    card = weight_bytes(GPT_OSS) - experts * 4.25 / 8 * (padding - 1)
    assert card / 2**30 == pytest.approx(60.8, rel=2e-3)
    halves = parameters(GPT_OSS, 2).experts
    rest = weight_bytes(GPT_OSS, tensor_parallel=2) - halves * 4.25 / 8 * (3072 * 1536 / (2880 * 1440))
    assert 0 < rest < weight_bytes(GPT_OSS) - experts * 4.25 / 8 * padding
    assert weight_bytes(GPT_OSS, "bf16") == 2 * parameters(GPT_OSS).total


def test_modules_that_a_checkpoint_leaves_in_bf16() -> None:
    """Meta's FP8 checkpoint of Llama-3.1-405B keeps attention and two layers in BF16: vllm#6746 logs 57.75 GiB on each
    of eight GPUs, with the 16 KV heads of its first release (vllm#6689)."""
    model = load_model("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8")
    first_release = dataclasses.replace(model, kv_heads=16)
    assert weight_bytes(first_release, tensor_parallel=8) / 2**30 == pytest.approx(57.75, rel=2e-3)
    assert weight_bytes(model, tensor_parallel=8) / 2**30 == pytest.approx(
        57.75 - 126 * 2 * 2 * 16384 * 128 / 2**30, rel=2e-3
    )
    other = load_model("RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8")
    assert weight_bytes(other, tensor_parallel=8) / 2**30 == pytest.approx(47.74, abs=0.01)
    assert weight_bytes(model, "bf16") == weight_bytes(other, "bf16")


def test_a_checkpoint_whose_routed_experts_alone_are_quantised() -> None:
    """Meta's FP8 checkpoint of Llama 4 Maverick: vllm#16152 logs 48.87 GiB on each of eight GPUs, with its vision
    tower, which has somewhat below a billion parameters."""
    model = load_model("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8")
    vision = 48.87 - weight_bytes(model, tensor_parallel=8) / 2**30
    assert 0 < vision < 2 * 0.9e9 / 2**30
    counted = parameters(model)
    assert weight_bytes(model) == 2 * counted.total - counted.experts


def test_modules_in_bf16_are_shared_out_to_the_stages_of_a_pipeline() -> None:
    """The stages have as many bytes as the whole, give or take a layer's FFN that the split rounds."""
    model = load_model("meta-llama/Llama-3.1-405B-FP8")
    halves = [parameters(stage.model) for stage in stages_of(model, 2)]
    assert sum(half.attention for half in halves) == parameters(model).attention
    kept = [dict(stage.model.bf16_layers) for stage in stages_of(model, 2)]
    assert [half["qkv_proj"] for half in kept] == [63, 63]
    assert [half["down_proj"] for half in kept] == [1, 1]
    assert weight_bytes(model, pipeline_parallel=2) == pytest.approx(weight_bytes(model) / 2, rel=0.001)


def test_experts_that_a_checkpoint_leaves_in_bf16() -> None:
    kept = dataclasses.replace(DEEPSEEK, bf16_layers=(("experts", 1), ("shared_down_proj", 58)))
    moe, hidden = DEEPSEEK.moe, DEEPSEEK.hidden
    assert moe is not None
    more = 3 * 256 * hidden * moe.moe_ffn + 58 * hidden * moe.moe_ffn
    assert weight_bytes(kept) == weight_bytes(DEEPSEEK) + more


def test_tensor_parallel_shards_matrices_and_replicates_the_rest() -> None:
    one, four = parameters(LLAMA_70B), parameters(LLAMA_70B, 4)
    assert 4 * four.attention == one.attention
    assert 4 * four.dense_ffn == one.dense_ffn
    assert (4 * four.lm_head, 4 * four.embedding) == (one.lm_head, one.embedding)
    assert four.other == one.other
    sixteen = parameters(LLAMA_70B, 16)  # twice as many GPUs as KV heads
    keys_and_values = 80 * 8192 * 2 * 128
    assert sixteen.attention == (one.attention - 8 * keys_and_values) // 16 + keys_and_values


def test_the_latent_of_mla_is_replicated() -> None:
    down = 61 * 7168 * (1536 + 512 + 64)
    one, eight = parameters(DEEPSEEK).attention, parameters(DEEPSEEK, 8).attention
    assert eight - down == (one - down) // 8
    assert kv_bytes_per_token(DEEPSEEK, tensor_parallel=8) == kv_bytes_per_token(DEEPSEEK)


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "message"),
    [
        ("llama-3.1-8b", 3, "tensor_parallel 3 does not divide the 32 attention heads of llama-3.1-8b"),
        ("llama-3.1-8b", 64, "tensor_parallel 64 does not divide the 32 attention heads"),
        ("qwen2.5-7b", 14, "tensor_parallel 14 neither divides the 4 KV heads of qwen2.5-7b nor"),
        ("llama-3.1-8b", 0, "tensor_parallel 0 does not divide"),
    ],
)
def test_heads_that_cannot_be_split(name: str, tensor_parallel: int, message: str) -> None:
    model = load_model(name)
    for arithmetic in (weight_bytes, kv_bytes_per_token):
        with pytest.raises(CostModelError, match=message):
            arithmetic(model, tensor_parallel=tensor_parallel)


def test_unknown_formats() -> None:
    with pytest.raises(CostModelError, match="unknown weight type 'fp9'; did you mean fp8"):
        weight_bytes(LLAMA_8B, "fp9")
    with pytest.raises(CostModelError, match="unknown KV cache type 'int3'; known: auto, bf16, fp16, fp8"):
        kv_bytes_per_token(LLAMA_8B, "int3")


def test_a_sequence_stops_growing_where_all_layers_have_a_window() -> None:
    mistral = load_model("mistral-7b-v0.1")
    assert kv_bytes(mistral, 1000) == 1000 * kv_bytes_per_token(mistral)
    assert kv_bytes(mistral, 5000) == kv_bytes(mistral, 4096)


def test_activations_are_the_larger_of_layers_and_logits() -> None:
    assert activation_bytes(LLAMA_8B) / 2**30 == pytest.approx(1.3, abs=0.1)
    small = activation_bytes(LLAMA_8B, max_num_batched_tokens=512)
    assert small < activation_bytes(LLAMA_8B, max_num_batched_tokens=32768)
    assert activation_bytes(LLAMA_70B, tensor_parallel=8) < activation_bytes(LLAMA_70B, tensor_parallel=1)
    # Few tokens in flight: the logits of the sequences that sample are what is left.
    logits = 256 * 128256 * 10
    assert small == 512 * 4096 * 2 + logits + 2**29
    # No more of them sample than there are tokens, and no more than there are sequences.
    assert activation_bytes(LLAMA_8B, max_num_batched_tokens=64) == 64 * 4096 * 2 + 64 * 128256 * 10 + 2**29
    fewer = activation_bytes(LLAMA_8B, max_num_batched_tokens=512, max_num_seqs=250)
    assert small - fewer == 6 * 128256 * 10
    older = activation_bytes(LLAMA_8B, max_num_batched_tokens=512, logit_bytes=36)
    assert older - small == 256 * 128256 * 26


def test_capacity_adds_up() -> None:
    found = kv_capacity(LLAMA_8B, H100)
    assert found.budget_bytes == int(0.9 * 80 * 2**30)
    assert found.kv_bytes == found.budget_bytes - found.weight_bytes - found.activation_bytes
    assert found.block_bytes == 16 * 131072
    # Block 0 belongs to the engine.
    assert found.blocks == found.kv_bytes // found.block_bytes - 1
    assert found.tokens == found.blocks * 16
    assert 440_000 < found.tokens < 460_000


def test_capacity_follows_what_it_is_given() -> None:
    base = kv_capacity(LLAMA_8B, H100)
    assert kv_capacity(LLAMA_8B, H100, kv_cache="fp8").tokens == pytest.approx(2 * base.tokens, rel=1e-3)
    assert kv_capacity(LLAMA_8B, H100, weights="fp8").tokens > base.tokens
    assert kv_capacity(LLAMA_8B, H100, activations=0).activation_bytes == 0
    assert kv_capacity(LLAMA_8B, H100, block_size=128).tokens == pytest.approx(base.tokens, abs=300)
    assert kv_capacity(LLAMA_8B, H100, gpu_memory_utilization=0.5).tokens < base.tokens


def test_a_model_that_does_not_fit() -> None:
    with pytest.raises(
        CostModelError,
        match=(
            r"llama-3\.1-70b does not fit on 1 x h100-sxm: weights 131\.4 GiB and activations 2\.1 GiB .* in "
            r"72\.0 GiB \(0\.9 of 80\.0 GiB HBM\)"
        ),
    ) as caught:
        kv_capacity(LLAMA_70B, H100)
    assert "\n" not in str(caught.value)


def test_one_block_is_the_least_that_fits() -> None:
    block = 16 * 131072
    taken = weight_bytes(LLAMA_8B)
    tight = dataclasses.replace(H100, hbm_bytes=taken + 2 * block)
    assert kv_capacity(LLAMA_8B, tight, gpu_memory_utilization=1.0, activations=0).blocks == 1
    with pytest.raises(CostModelError, match="does not fit"):
        kv_capacity(LLAMA_8B, tight, gpu_memory_utilization=1.0, activations=1)


def test_sequences_take_whole_blocks() -> None:
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    found = kv_capacity(LLAMA_8B, H100)
    assert found.concurrency(17) == found.blocks / 2
