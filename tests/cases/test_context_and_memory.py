"""An engine starts only if one request of the context limit fits its KV memory; what windows hide of that memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.scenario import parse_scenario
from simulator.study.dry_run import dry_run
from simulator.study.prepare import Prepared, prepare

WORKLOAD = {"arrivals": {"process": "all_at_once"}, "requests": 10, "prompt_tokens": 1000, "output_tokens": 200}
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}


def prepared(model: str, workload: dict[str, Any] | None = None, **pool: Any) -> Prepared:
    pools = {"main": {"gpu": "h100-sxm", **pool}}
    document = {"name": "test", "model": model, "workload": workload or WORKLOAD, "deployment": {"pools": pools}}
    return prepare(parse_scenario(json.dumps(document)))


def vllm(**settings: Any) -> dict[str, Any]:
    return {"version": "vllm-0.33", "max_num_seqs": 1024, "max_num_batched_tokens": 8192, **settings}


def refusal(model: str, **pool: Any) -> str:
    with pytest.raises(InputError) as caught:
        prepared(model, **pool)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def codes(found: Prepared) -> list[str]:
    return [note.code for note in found.resolved.notes]


def advised(text: str) -> int:
    return int(text.partition("max_model_len to at most ")[2].split()[0])


# --- one request of the context limit


def test_a_pool_below_the_context_limit_is_refused_and_the_advice_works() -> None:
    """Qwen3-32B in BF16 on one H100 with 40,960 tokens: vLLM does not start."""
    text = refusal("qwen3-32b", scheduler=vllm(max_model_len=40_960))
    assert text.startswith("deployment.pools.main.scheduler.max_model_len: one request of 40960 tokens needs 10.00 GiB")
    longest = advised(text)
    assert 30_000 < longest < 40_960
    found = prepared("qwen3-32b", scheduler=vllm(max_model_len=longest)).resolved.pools[0].service
    assert found.max_model_len == longest == found.kv_blocks * 16
    refusal("qwen3-32b", scheduler=vllm(max_model_len=longest + 1))
    share = float(text.partition("gpu_memory_utilization to ")[2].split(",")[0])
    given = {"gpu_memory_utilization": share}
    assert prepared("qwen3-32b", scheduler=vllm(max_model_len=40_960), memory=given).resolved.max_model_len == 40_960


def test_a_limit_that_is_left_out_is_the_models_own_and_is_checked_too() -> None:
    text = refusal("qwen3-32b", scheduler=vllm())
    assert "40960 tokens (qwen3-32b's own, since none is given)" in text
    assert prepared("qwen3-32b", scheduler=vllm(max_model_len="auto")).resolved.max_model_len == advised(text)


def test_auto_is_at_most_the_models_own() -> None:
    assert prepared("qwen3-8b", scheduler=vllm(max_model_len="auto")).resolved.max_model_len == 40_960


@pytest.mark.parametrize("policy", ["vllm", "prefill_first", "sarathi"])
def test_engines_that_check_at_start(policy: str) -> None:
    settings = {"policy": policy, "max_num_batched_tokens": 40_960}
    assert "the engine would not start" in refusal("qwen3-32b", scheduler=settings)


@pytest.mark.parametrize("policy", ["sglang", "tensorrt_llm", "static", "orca"])
def test_others_refuse_single_requests(policy: str) -> None:
    settings = {"policy": policy, "max_num_batched_tokens": 40_960}
    assert prepared("qwen3-32b", scheduler=settings).resolved.max_model_len == 40_960


def test_every_pool_of_a_split_deployment_is_checked() -> None:
    pools = {
        "first": {"gpu": "h100-sxm", "role": "prefill", "tensor_parallel": 2},
        "second": {"gpu": "h100-sxm", "role": "decode"},
    }
    document = {"name": "test", "model": "qwen3-32b", "workload": WORKLOAD, "deployment": {"pools": pools}}
    with pytest.raises(InputError, match=r"^deployment\.pools\.second\.scheduler\.max_model_len: "):
        prepare(parse_scenario(json.dumps(document)))


def test_a_number_of_blocks_that_the_scenario_gives_is_taken_and_noted() -> None:
    """Such a pool may be smaller than any engine accepts; each request that does not fit is refused."""
    few = {"kv_blocks": 100}
    assert "context_beyond_memory" in codes(prepared("qwen3-8b", scheduler=vllm(max_model_len=8192), memory=few))
    assert "context_beyond_memory" not in codes(prepared("qwen3-8b", scheduler=vllm(), memory=few))


# --- memory beside weights and KV


def gpt_oss(utilization: float, budget: int, **settings: Any) -> dict[str, Any]:
    asked = {"version": "vllm-0.10", "max_num_seqs": 1024, "max_num_batched_tokens": budget, **settings}
    return {"scheduler": asked, "memory": {"gpu_memory_utilization": utilization}}


def test_gpt_oss_120b_does_not_start_on_one_h100() -> None:
    """vllm#23278: 65.97 GiB of weights and -2.14 GiB for KV at 0.9 of the memory and 8,192 tokens."""
    text = refusal("gpt-oss-120b", **gpt_oss(0.9, 8192))
    assert "the engine would not start; set max_model_len to at most 99936 (or to auto) and lower max_num_seqs" in text
    assert "gpu_memory_utilization" not in text


def test_sampling_at_start_of_older_versions_is_told() -> None:
    """vllm#27508: 1.71 GiB for KV at 0.95 and 1,024 tokens, and no start."""
    found = prepared("gpt-oss-120b", **gpt_oss(0.95, 1024))
    (text,) = [note.text for note in found.resolved.notes if note.code == "sampling_at_start"]
    assert "KV memory would be 2.8 GiB, not 7.8, and it would not start; lower max_num_seqs" in text
    (text,) = [
        note.text
        for note in prepared("gpt-oss-120b", **gpt_oss(0.95, 1024, max_model_len=32_768)).resolved.notes
        if note.code == "sampling_at_start"
    ]
    assert "not start" not in text
    assert "sampling_at_start" not in codes(prepared("gpt-oss-120b", **gpt_oss(0.95, 1024, max_num_seqs=64)))
    assert "sampling_at_start" not in codes(prepared("gpt-oss-120b", **gpt_oss(0.95, 1024, version="vllm-0.33")))


# --- windows


def gemma(folder: Path, tokens: int, utilization: float, **settings: Any) -> Prepared:
    (folder / "config.json").write_text(json.dumps(GEMMA3_4B))
    load = WORKLOAD | {"prompt_tokens": tokens - 500, "output_tokens": 500}
    memory = {"gpu_memory_utilization": utilization}
    return prepared(str(folder), load, gpu="a100-sxm-80gb", memory=memory, scheduler=vllm(max_num_seqs=256, **settings))


def test_concurrency_that_windows_would_allow_is_told(tmp_path: Path) -> None:
    """Gemma-3-4B with 42.3 GiB of KV (kvcached#215): of 32,500 tokens vLLM holds 57 requests if all decode."""
    found = gemma(tmp_path, 32_500, 0.635, max_model_len=65_536)
    (text,) = [note.text for note in found.resolved.notes if note.code == "window_kv_in_full"]
    assert "29 of the 34 layers" in text
    assert "10 requests of 32,500 tokens, the workload's mean, fit at once here and 16 to 57 in vLLM" in text
    assert text in [warning["text"] for warning in dry_run(found)["warnings"]]


def test_nothing_is_said_where_all_requests_lie_within_the_window(tmp_path: Path) -> None:
    assert "window_kv_in_full" not in codes(gemma(tmp_path, 1000, 0.635, max_model_len=65_536))


def test_a_model_with_windows_starts_as_far_as_its_windows_allow(tmp_path: Path) -> None:
    """A pool of 5 GiB holds 43,000 tokens in all layers, and a request of 131,072 by the windows: vLLM starts."""
    found = gemma(tmp_path, 1000, 0.2, max_model_len=131_072)
    assert found.resolved.pools[0].service.kv_blocks * 16 < 131_072
    with pytest.raises(InputError, match="one request of 131072 tokens needs") as caught:
        gemma(tmp_path, 1000, 0.15, max_model_len=131_072)
    assert gemma(tmp_path, 1000, 0.15, max_model_len=advised(str(caught.value)))


# --- models


def test_what_is_not_known_of_a_config_is_a_warning_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3_4B | {"vision_config": {"depth": 27}}))
    found = prepared(str(tmp_path), scheduler=vllm(max_model_len=8192))
    texts = [note.text for note in found.resolved.notes if note.code == "model_config"]
    assert texts == [
        f"{tmp_path / 'config.json'}: the language model alone is simulated, without the weights of vision_config"
    ]


def test_a_hybrid_model_is_an_error_of_the_scenario(tmp_path: Path) -> None:
    """A Nemotron-H file, with 4 layers of attention in 52, was once taken as 52 layers of attention."""
    text = GEMMA3_4B["text_config"] | {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M-M*-M"}
    (tmp_path / "config.json").write_text(json.dumps(text))
    message = refusal(str(tmp_path), scheduler=vllm())
    assert message.startswith(
        f"model: {tmp_path / 'config.json'}: hybrid_override_pattern: a model with layers of several"
    )


def test_llama_405b_in_fp8_leaves_attention_in_bf16() -> None:
    """vllm#6746: 57.75 GiB of weights on each of eight H100, with 16 KV heads; the checkpoint has had 8 since."""
    settings = vllm(max_num_seqs=256)
    found = prepared("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", tensor_parallel=8, scheduler=settings)
    capacity = found.resolved.pools[0].capacity
    assert capacity is not None
    assert capacity.weight_bytes / 2**30 == pytest.approx(57.75, rel=0.02)


def test_a_context_limit_that_is_neither_a_number_nor_auto() -> None:
    text = refusal("qwen3-8b", scheduler=vllm(max_model_len="automatic"))
    assert "scheduler.max_model_len: expected auto, or a number; found 'automatic'" in text
