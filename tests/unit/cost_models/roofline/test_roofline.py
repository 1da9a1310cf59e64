"""The roofline: monotone, above the physical bound, and the same however it is asked."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import BatchShape, CostModelError, HostModel, Roofline, gpu_names, load_gpu, load_model, model_names
from cost_models.roofline.operands import causal_pairs
from cost_models.shape import costs_one_by_one
from tests.costs import build_roofline

#: One of each kind: dense; windows in all layers; MoE, windows in half of them, MXFP4; MLA, MoE, FP8.
MODELS = ("llama-3.1-8b", "mistral-7b-v0.1", "gpt-oss-120b", "deepseek-v3")


@cache
def roofline(
    model: str, gpu: str = "h100-sxm", tensor_parallel: int = 1, kv_cache: str = "auto", calibration: str = "auto"
) -> Roofline:
    return build_roofline(
        load_model(model),
        load_gpu(gpu),
        tensor_parallel=tensor_parallel,
        kv_cache=kv_cache,
        max_num_batched_tokens=512,
        max_num_seqs=64,
        calibration=calibration,
    )


def shape_of(window: int, contexts: list[int], chunks: list[tuple[int, int]], drafts: int = 0) -> BatchShape:
    """Return a step in which every decode and chunk samples a token."""
    return BatchShape(
        decodes=len(contexts),
        decode_context=sum(contexts),
        decode_window_context=sum(min(context, window) for context in contexts) if window else 0,
        chunks=tuple(chunks),
        sampled=len(contexts) + len(chunks),
        draft_tokens=drafts,
    )


CONTEXTS = st.lists(st.integers(1, 100_000), max_size=80)
CHUNKS = st.lists(st.tuples(st.integers(1, 700), st.integers(0, 50_000)), max_size=4)
KINDS = st.tuples(st.sampled_from(MODELS), st.sampled_from(["auto", "fp8"]))


@settings(max_examples=150, deadline=None)
@given(KINDS, CONTEXTS, CHUNKS, st.integers(0, 40), st.data())
def test_more_work_never_takes_less_time(
    kind: tuple[str, str],
    contexts: list[int],
    chunks: list[tuple[int, int]],
    drafts: int,
    data: st.DataObject,
) -> None:
    law = roofline(kind[0], kv_cache=kind[1])
    less = shape_of(law.window, contexts, chunks, drafts)
    more_contexts = [context + data.draw(st.integers(0, 300)) for context in contexts]
    more_contexts += data.draw(st.lists(st.integers(1, 1000), max_size=3))
    more_chunks = [
        (tokens + data.draw(st.integers(0, 50)), context + data.draw(st.integers(0, 50))) for tokens, context in chunks
    ]
    more_chunks += data.draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=1))
    # Drafts are assumed to be spread evenly over the decodes: those that join have their share.
    more_drafts = -(-drafts * len(more_contexts) // len(contexts)) if contexts else drafts
    more = shape_of(law.window, more_contexts, more_chunks, more_drafts + data.draw(st.integers(0, 3)))
    assert law.step_cost(less).device_ns <= law.step_cost(more).device_ns


@settings(max_examples=150, deadline=None)
@given(KINDS, st.sampled_from(["h100-sxm", "a100-sxm-80gb", "l40s"]), CONTEXTS, CHUNKS, st.integers(0, 40))
def test_never_below_the_physical_bound_and_the_parts_add_up(
    kind: tuple[str, str], gpu: str, contexts: list[int], chunks: list[tuple[int, int]], drafts: int
) -> None:
    law = roofline(kind[0], gpu, tensor_parallel=8, kv_cache=kind[1])
    shape = shape_of(law.window, contexts, chunks, drafts)
    device_ns = law.step_cost(shape).device_ns
    assert device_ns >= law.bound_ns(shape)
    parts = law.breakdown(shape)
    assert sum(parts.values()) == device_ns
    assert all(type(part) is int and part >= 0 for part in parts.values())


@settings(max_examples=100, deadline=None)
@given(KINDS, CONTEXTS.filter(bool), st.integers(0, 60), st.integers(0, 40))
def test_a_decode_run_equals_single_steps(kind: tuple[str, str], contexts: list[int], steps: int, drafts: int) -> None:
    law = roofline(kind[0], kv_cache=kind[1])
    first = shape_of(law.window, contexts, [], drafts)
    singles = [
        law.step_cost(first._replace(decode_context=first.decode_context + step * first.decodes)).device_ns
        for step in range(steps)
    ]
    assert law.decode_run(first, steps).tolist() == singles


@settings(max_examples=60, deadline=None)
@given(KINDS, st.lists(CONTEXTS.filter(bool), max_size=12))
def test_costs_of_many_decode_steps_equal_those_of_each(kind: tuple[str, str], steps: list[list[int]]) -> None:
    law = roofline(kind[0], kv_cache=kind[1])
    shapes = [shape_of(law.window, contexts, []) for contexts in steps]
    columns = [np.array([shape[at] for shape in shapes], np.int64) for at in range(3)]
    found = [times.tolist() for times in law.decode_costs(*columns)]
    assert found == [times.tolist() for times in costs_one_by_one(law, *columns)]


def test_a_decode_run_without_decodes_or_with_chunks() -> None:
    law = roofline("llama-3.1-8b")
    assert law.decode_run(BatchShape(), 3).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="expected a pure decode step, found 1 prefill chunks"):
        law.decode_run(BatchShape(chunks=((5, 0),)), 3)


@pytest.mark.parametrize("model", model_names())
def test_tokens_and_rows_are_monotone_across_the_end_of_the_table(model: str) -> None:
    heads = load_model(model).heads
    law = roofline(model, tensor_parallel=max(gpus for gpus in (1, 2, 4, 8) if heads % gpus == 0))
    by_tokens = [law.step_cost(BatchShape(decodes=n)).device_ns for n in range(700)]
    by_rows = [law.step_cost(BatchShape(sampled=n)).device_ns for n in range(700)]
    assert by_tokens == sorted(by_tokens)
    assert by_rows == sorted(by_rows)


def test_beyond_the_table_the_same_formula_holds() -> None:
    small = roofline("gpt-oss-120b")
    large = build_roofline(load_model("gpt-oss-120b"), load_gpu("h100-sxm"), max_num_batched_tokens=100_000)
    for tokens in (576, 577, 5000, 65_536, 65_537):
        shape = BatchShape(chunks=((tokens, 0),), sampled=tokens)
        assert small.step_cost(shape) == large.step_cost(shape)


def test_an_empty_step_costs_nothing() -> None:
    law = roofline("deepseek-v3", tensor_parallel=8)
    assert law.step_cost(BatchShape()).device_ns == law.bound_ns(BatchShape()) == 0


def test_host_time_is_handed_through() -> None:
    host = HostModel(cpu_step=1.3e-3, cpu_sequence=1e-5, cpu_prefill_step=4e-3)
    law = build_roofline(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), host=host)
    assert law.step_cost(BatchShape(decodes=2, decode_context=2, sampled=2)).host_ns == 1_320_000
    assert law.step_cost(BatchShape(decodes=2, decode_context=2, chunks=((16, 0),), sampled=2)).host_ns == 5_330_000


def test_only_models_with_a_window_need_its_context() -> None:
    assert [roofline(model).window for model in MODELS] == [0, 4096, 128, 0]
    law = roofline("gpt-oss-120b")
    # Long contexts: calls on few keys spare part of their launch, those of a window do not.
    base, seen = BatchShape(decodes=8, decode_context=800_000), 8 * 128
    least = law.step_cost(base).device_ns
    more_full = law.step_cost(base._replace(decode_context=801_000)).device_ns - least
    more_window = law.step_cost(base._replace(decode_window_context=seen)).device_ns - least
    # Half the layers of each kind, the same bytes a key.
    assert more_window == pytest.approx(more_full * seen / 1000, rel=0.01)


@pytest.mark.parametrize("window", [1, 3, 10, 100])
def test_pairs_in_a_window(window: int) -> None:
    for tokens in (1, 2, 7, 30):
        for context in (0, 1, 2, 9, 50):
            counted = sum(min(context + query, window) for query in range(1, tokens + 1))
            assert causal_pairs(np.array([float(tokens)]), np.array([float(context)]), window) == [counted]


def test_chunks_of_a_prompt_attend_to_what_came_before() -> None:
    law = roofline("llama-3.1-8b")
    steps = [BatchShape(chunks=((512, context),)) for context in range(0, 32_768, 512)]
    times = [law.breakdown(step)["prefill_attention"] for step in steps]
    assert all(later > earlier for earlier, later in pairwise(times))
    # Together they are the work of the whole prompt, which the bound shows free of launches.
    bound = sum(law.bound_ns(step) for step in steps)
    assert bound == pytest.approx(law.bound_ns(BatchShape(chunks=((32_768, 0),))), rel=0.01)


def test_a_window_limits_what_a_chunk_reads() -> None:
    mistral = roofline("mistral-7b-v0.1")
    near, far, beyond = (mistral.breakdown(BatchShape(chunks=((256, c),))) for c in (1_000, 10_000, 100_000))
    assert near["prefill_attention"] < far["prefill_attention"] == beyond["prefill_attention"]


def test_estimated_decode_attention_follows_its_law() -> None:
    # A layer: 18 us, and 4 KiB a token of the context and 84 tokens more at 95.6% of the peak bandwidth.
    shape = BatchShape(decodes=64, decode_context=64 * 2000)
    layer_ns = 18_000 + 64 * (2000 + 84) * 4096 / (0.956 * 3350)
    law = roofline("llama-3.1-8b", calibration="none")
    assert law.breakdown(shape)["decode_attention"] == int(32 * layer_ns)


def test_estimated_all_reduces_follow_their_law() -> None:
    # Two a layer and one for the embedding, of a hidden state of 8 KiB a token.
    law = roofline("llama-3.1-8b", tensor_parallel=2, calibration="none")
    parts = law.breakdown(BatchShape(decodes=64, sampled=64))
    assert parts["all_reduce"] == pytest.approx(65 * (4_200 + 64 * 8192 / 282), abs=1)
    assert parts["gather_logits"] == pytest.approx(4_200 + 64 * 128_256 * 2 / 282, abs=1)


def test_short_chunks_run_side_by_side_and_long_ones_share_the_gpu() -> None:
    law = roofline("llama-3.1-8b")

    def attention_ns(tokens: int, chunks: int) -> int:
        return law.breakdown(BatchShape(chunks=((tokens, 20_000),) * chunks))["prefill_attention"]

    assert attention_ns(16, 4) == attention_ns(16, 1)
    assert attention_ns(2048, 4) > 3.9 * attention_ns(2048, 1)


def test_tensor_parallel_shortens_a_step_but_less_than_in_proportion() -> None:
    shape = BatchShape(decodes=64, decode_context=64 * 4000, sampled=64)
    times = [roofline("llama-3.1-70b", tensor_parallel=n).step_cost(shape).device_ns for n in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] < 8 * times[3]
    assert "all_reduce" not in roofline("llama-3.1-70b").breakdown(shape)
    assert roofline("llama-3.1-70b", tensor_parallel=8).breakdown(shape)["all_reduce"] > 0


def test_experts_that_are_not_routed_to_are_not_read() -> None:
    law = roofline("mixtral-8x7b", tensor_parallel=2)
    one, many = (law.breakdown(BatchShape(decodes=n))["moe"] for n in (1, 64))
    assert 2.5 < many / one < 4.1  # 2 of 8 experts, then all of them; beside the weights a call has its launch


def test_quantised_weights_and_cache_are_faster() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    decode, prefill = BatchShape(64, 64 * 4000, sampled=64), BatchShape(chunks=((4096, 0),), sampled=1)
    wide = build_roofline(model, gpu)
    for shape, narrow in (
        (decode, build_roofline(model, gpu, weights="fp8")),
        (prefill, build_roofline(model, gpu, weights="fp8")),
        (decode, build_roofline(model, gpu, kv_cache="fp8")),
    ):
        assert narrow.step_cost(shape).device_ns < 0.9 * wide.step_cost(shape).device_ns


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-14b", "qwen3-30b-a3b"])
def test_every_gpu_lies_within_sight_of_its_bound(gpu: str, model: str) -> None:
    law = roofline(model, gpu, tensor_parallel=2)
    decode = BatchShape(decodes=64, decode_context=64 * 2000, sampled=64)
    prefill = BatchShape(chunks=((4096, 0),), sampled=1)
    # Fused experts, of which each sees few tokens, are far from the peaks.
    most = 8 if load_model(model).moe else 5
    for shape in (decode, prefill):
        assert 1 < law.step_cost(shape).device_ns / law.bound_ns(shape) < most


def test_llama_8b_on_an_h100_decodes_in_less_than_measured_with_host_and_client() -> None:
    # Measured TPOT, client and host included, is about 7.07 ms. The lower bound is the present value: not a claim.
    step = roofline("llama-3.1-8b").step_cost(BatchShape(decodes=1, decode_context=1000, sampled=1))
    assert 5.9e6 < step.device_ns < 7.07e6


def test_what_cannot_be_built() -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    with pytest.raises(CostModelError, match="tensor_parallel 5 does not divide"):
        build_roofline(model, gpu, tensor_parallel=5)
    with pytest.raises(CostModelError, match="measured on 2, 4, 8 GPUs only"):
        build_roofline(model, gpu, tensor_parallel=16)
    with pytest.raises(CostModelError, match="unknown weight type"):
        build_roofline(model, gpu, weights="fp4")


def test_layers_in_bf16_take_longer_than_quantised_ones() -> None:
    """Between the times of all layers in FP8 and all in BF16, in proportion to the layers."""
    gpu, shape = load_gpu("h100-sxm"), BatchShape(decodes=8, decode_context=800, sampled=8)
    plain = load_model("llama-3.1-8b")
    kept = tuple((module, 8) for module in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    quantised = dataclasses.replace(plain, native_quant="fp8")
    models = (quantised, dataclasses.replace(quantised, bf16_layers=kept), plain)
    costs = [build_roofline(model, gpu) for model in models]
    fast, mixed, slow = (cost.step_cost(shape).device_ns for cost in costs)
    assert mixed == pytest.approx(fast + (slow - fast) / 4, rel=0.001)
    bounds = [cost.bound_ns(shape) for cost in costs]
    assert bounds[1] == pytest.approx(bounds[0] + (bounds[2] - bounds[0]) / 4, rel=0.001)
