"""The shipped models and GPUs, and what their dimensions add up to."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

import cost_models
from cost_models import (
    CostModelError,
    active_parameters,
    gpu_names,
    kv_bytes_per_token,
    load_gpu,
    load_model,
    model_names,
    parameters,
)

#: (parameters in billions: all, those that one token uses; bytes of BF16 KV cache a token), as published.
PUBLISHED = {
    "llama-3.1-8b": (8.03, 8.03, 131_072),
    "llama-3.1-70b": (70.552, 70.552, 327_680),
    "llama-3.1-405b": (405.849, 405.849, 516_096),
    "llama-2-7b": (6.738, 6.738, 524_288),
    "llama-2-70b": (68.975, 68.975, 327_680),
    "qwen2.5-7b": (7.615, 7.615, 57_344),
    "qwen2.5-72b": (72.704, 72.704, 327_680),
    "qwen3-8b": (8.19, 8.19, 147_456),
    "qwen3-32b": (32.761, 32.761, 262_144),
    "qwen3-30b-a3b": (30.532, 3.353, 98_304),
    "qwen3-235b-a22b": (235.093, 22.19, 192_512),
    "mistral-7b-v0.1": (7.241, 7.241, 131_072),
    "mixtral-8x7b": (46.703, 12.88, 131_072),
    "deepseek-v3": (671.025, 37.551, 70_272),
    "deepseek-r1": (671.025, 37.551, 70_272),
    "gpt-oss-120b": (116.789, 5.71, 73_728),
    "gpt-oss-20b": (20.908, 4.186, 49_152),
    "qwen3-14b": (14.768, 14.768, 163_840),
    "codellama-34b": (33.743, 33.743, 196_608),
    "yi-34b": (34.388, 34.388, 245_760),
    "mistral-nemo-12b": (12.247, 12.247, 163_840),
    "mixtral-8x22b": (140.629, 39.161, 229_376),
    "llama-3.2-3b": (3.213, 3.213, 114_688),
    "llama-3-8b": (8.03, 8.03, 131_072),
    "llama-3-70b": (70.552, 70.552, 327_680),
    "llama-4-scout": (107.77, 17.17, 196_608),
    "llama-4-maverick": (400.71, 17.18, 196_608),
    "glm-4.5-air": (106.85, 13.42, 188_416),
    "mistral-7b-v0.3": (7.248, 7.248, 131_072),
    "qwen2.5-0.5b": (0.494, 0.494, 12_288),
    "qwen3-0.6b": (0.596, 0.596, 114_688),
    "qwen3-1.7b": (1.721, 1.721, 114_688),
    "llama-3.2-1b": (1.236, 1.236, 32_768),
    "opt-13b": (12.853, 12.853, 819_200),
    "opt-66b": (65.72, 65.72, 2_359_296),
    "opt-175b": (174.604, 174.604, 4_718_592),
}


def test_every_published_model_is_shipped() -> None:
    assert set(model_names()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_dimensions_add_up_to_the_published_totals(name: str) -> None:
    model = load_model(name)
    total_b, active_b, kv_bytes = PUBLISHED[name]
    assert parameters(model).total / 1e9 == pytest.approx(total_b, rel=1e-3)
    assert active_parameters(model) / 1e9 == pytest.approx(active_b, rel=1e-3)
    assert kv_bytes_per_token(model) == kv_bytes
    assert model.source
    assert model.max_position >= 2048


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
    ],
)
def test_parameters_are_those_of_the_checkpoint_to_the_last_one(name: str, exact: int) -> None:
    assert parameters(load_model(name)).total == exact


@pytest.mark.parametrize(("name", "attention"), [("llama-2-7b", "mha"), ("qwen3-14b", "gqa"), ("deepseek-v3", "mla")])
def test_attention_kind(name: str, attention: str) -> None:
    assert load_model(name).attention == attention


def test_layers_with_a_sliding_window() -> None:
    gpt, mistral = load_model("gpt-oss-120b"), load_model("mistral-7b-v0.1")
    assert (gpt.sliding_window, gpt.window_layers, gpt.full_layers) == (128, 18, 18)
    assert (mistral.sliding_window, mistral.window_layers, mistral.full_layers) == (4096, 32, 0)


@pytest.mark.parametrize("alias", ["Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "meta-llama/llama-3.1-8b-instruct"])
def test_a_model_has_several_names(alias: str) -> None:
    assert load_model(alias) == load_model("llama-3.1-8b")


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_listed_id_means_its_own_model(name: str) -> None:
    path = Path(cost_models.__file__).parent / "models" / f"{name}.yaml"
    for identifier in yaml.safe_load(path.read_text(encoding="utf-8")).get("hugging_face", []):
        assert load_model(identifier).name == name


@pytest.mark.parametrize(
    ("alias", "name", "native_quant"),
    [
        ("LLaMA 3.1 70B", "llama-3.1-70b", None),
        ("Llama-2-7b-chat-hf", "llama-2-7b", None),
        ("Meta-Llama-3-8B-Instruct", "llama-3-8b", None),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b", None),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b", None),
        ("mistral-7b", "mistral-7b-v0.1", None),
        ("someone/Llama-3.3-70B-Instruct", "llama-3.1-70b", None),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", "fp8"),
        ("Meta-Llama-3-8B-Instruct-FP8", "llama-3-8b", "fp8"),
        ("neuralmagic/Mixtral-8x7B-Instruct-v0.1-FP8", "mixtral-8x7b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "int8"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "qwen2.5-7b", "int8"),
        ("Qwen/Qwen3-8B-AWQ", "qwen3-8b", "int4"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", "fp8"),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", None),
    ],
)
def test_tuned_and_repacked_models_go_by_their_base(alias: str, name: str, native_quant: str | None) -> None:
    assert load_model(alias) == dataclasses.replace(load_model(name), native_quant=native_quant)


@pytest.mark.parametrize(
    "name",
    [
        "Mistral-7B-Instruct-v0.2",  # not the window of v0.1, nor the vocabulary of v0.3
        "nvidia/Qwen3-235B-A22B-NVFP4",  # a format that is not priced
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",  # another model
        "Llama-70B",  # of which generation?
        "Qwen/Qwen3-8B-FP8-tuned",
    ],
)
def test_a_name_that_only_resembles_a_known_one_is_refused(name: str) -> None:
    with pytest.raises(CostModelError, match="unknown model"):
        load_model(name)


def test_ffn_without_gate() -> None:
    assert not load_model("opt-13b").gated_ffn
    assert load_model("llama-2-7b").gated_ffn


def test_an_unknown_model_lists_the_nearest() -> None:
    with pytest.raises(CostModelError, match=r"'llama-3\.1-8x'; did you mean llama-3\.1-8b or") as caught:
        load_model("llama-3.1-8x")
    assert "\n" not in str(caught.value)
    with pytest.raises(CostModelError, match=r"'someone/Mixtral-8x7B-tuned'; did you mean mixtral-8x7b"):
        load_model("someone/Mixtral-8x7B-tuned")
    with pytest.raises(CostModelError, match="known: codellama-34b, deepseek-r1"):
        load_model("zzzz")


def test_a_model_that_contradicts_itself_is_refused() -> None:
    model = load_model("llama-3.1-8b")
    for change, message in (
        ({"kv_heads": 3}, r"kv_heads \(3\) must divide heads \(32\)"),
        ({"window_layers": 4}, "4 of 32 layers cannot have a sliding window of 0 tokens"),
        ({"bf16_layers": (("o_proj", 4),)}, "bf16_layers: 4 layers of o_proj cannot be left in BF16"),
        ({"native_quant": "fp3"}, "native_quant: expected fp8, int8, int4, mxfp4 or nothing, found 'fp3'"),
    ):
        with pytest.raises(CostModelError, match=message):
            dataclasses.replace(model, **change)


def test_shipped_gpus_have_sane_peaks_and_sources() -> None:
    assert gpu_names() == ["a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s"]
    for name in gpu_names():
        gpu = load_gpu(name)
        assert 30 * 2**30 < gpu.hbm_bytes < 150 * 2**30
        assert 150 < gpu.ridge_tokens("bf16") < 450
        kernels = (gpu.gemm, gpu.moe, gpu.prefill_attention, gpu.decode_attention, gpu.elementwise)
        assert all(kernel.source for kernel in kernels)
        assert gpu.source


def test_h100_is_that_of_the_datasheet() -> None:
    h100 = load_gpu("h100-sxm")
    assert h100.hbm_bytes == 80 * 2**30
    assert h100.hbm_bandwidth == 3.35e12
    assert (h100.peak("bf16"), h100.peak("fp16"), h100.peak("fp8")) == (989.4e12, 989.4e12, 1978.9e12)


@pytest.mark.parametrize("alias", ["h100_sxm", "H100-SXM", "H100 SXM"])
def test_a_gpu_has_several_names(alias: str) -> None:
    assert load_gpu(alias) == load_gpu("h100-sxm")


def test_an_unknown_gpu_lists_the_nearest() -> None:
    with pytest.raises(CostModelError, match="unknown GPU 'h100-xsm'; did you mean h100-sxm"):
        load_gpu("h100_xsm")


@pytest.mark.parametrize("name", ["H100", "h100_sxm", "NVIDIA H100 80GB HBM3", "H100-SXM"])
def test_a_gpu_is_known_by_what_its_driver_and_others_call_it(name: str) -> None:
    assert load_gpu(name).name == "h100-sxm"


def test_a_gpu_without_fp8_computes_it_in_bf16() -> None:
    a100 = load_gpu("a100-sxm-80gb")
    assert a100.peak("fp8") == a100.peak("bf16") == 312e12
    assert a100.peak("int8") == 624e12


def test_all_reduce_takes_the_next_larger_group_and_refuses_beyond_it() -> None:
    h100 = load_gpu("h100-sxm")
    assert h100.all_reduce_over(3) == h100.all_reduce[4]
    with pytest.raises(CostModelError, match="tensor_parallel 16: the all-reduce of h100-sxm is known for 2"):
        h100.all_reduce_over(16)


@pytest.mark.parametrize(("name", "nearest"), [("b200", "h200-sxm"), ("B200-SXM", "h200-sxm"), ("L40", "l40s")])
def test_another_chip_is_no_typing_error(name: str, nearest: str) -> None:
    with pytest.raises(CostModelError, match=f"it is not modelled; known, nearest first: {nearest}, ") as caught:
        load_gpu(name)
    for known in gpu_names():
        assert str(caught.value).count(known) == 1
