"""Attention over drafts: keys are read once for all queries of a sequence, and each query costs its arithmetic."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import BatchShape, Roofline, load_gpu, load_model
from tests.costs import build_roofline

#: Shared KV heads; windows in half of the layers; latent attention.
MODELS = ("llama-3.1-8b", "gpt-oss-120b", "deepseek-v3")


@cache
def roofline(model: str, gpu: str = "h100-sxm", calibration: str = "auto") -> Roofline:
    limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
    return build_roofline(load_model(model), load_gpu(gpu), calibration=calibration, **limits)


def decodes(law: Roofline, count: int, context: int, drafts: int = 0) -> BatchShape:
    """Return a step of equal decodes, with the context and the drafts of each."""
    seen = min(context, law.window)
    return BatchShape(count, count * context, count * seen, (), 0, count, count * drafts)


def attention_ns(law: Roofline, shape: BatchShape) -> int:
    return law.breakdown(shape)["decode_attention"]


def test_few_queries_are_hidden_behind_shared_keys_but_not_behind_a_latent() -> None:
    for model, least, most in (("llama-3.1-8b", 1.0, 1.01), ("deepseek-v3", 3.5, 4.2)):
        law = roofline(model)
        one, four = (attention_ns(law, decodes(law, 64, 8192, drafts)) for drafts in (0, 3))
        assert least <= four / one <= most, model


def test_the_arithmetic_of_many_queries_bounds_shared_keys_too() -> None:
    law, gpu = roofline("llama-3.1-8b"), load_gpu("h100-sxm")
    queries, keys = 256, 64 * 8192
    time = attention_ns(law, decodes(law, 64, 8192, queries - 1))
    flops = 32 * queries * keys * 2 * 32 * (128 + 128)
    assert time >= 1e9 * flops / gpu.peak("bf16")
    assert time == pytest.approx(1e9 * flops / (0.6 * gpu.peak("bf16")), rel=0.03)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(["h100-sxm", "a100-sxm-80gb"]),
    st.sampled_from(["auto", "none"]),
    st.integers(1, 80),
    st.integers(1, 60_000),
    st.integers(0, 9),
    st.integers(1, 5),
)
def test_drafts_never_shorten_a_step_and_keep_it_above_its_bound(
    model: str, gpu: str, calibration: str, count: int, context: int, drafts: int, more: int
) -> None:
    law = roofline(model, gpu, calibration)
    less, greater = decodes(law, count, context, drafts), decodes(law, count, context, drafts + more)
    assert law.step_cost(less).device_ns < law.step_cost(greater).device_ns
    for shape in (less, greater):
        assert law.bound_ns(shape) <= law.step_cost(shape).device_ns
        assert sum(law.breakdown(shape).values()) == law.step_cost(shape).device_ns
    assert law.bound_ns(less) <= law.bound_ns(greater)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), st.integers(1, 40), st.integers(1, 60_000), st.integers(0, 9))
def test_a_decode_that_brings_its_share_of_drafts_never_shortens_a_step(
    model: str, count: int, context: int, drafts: int
) -> None:
    law = roofline(model)
    fewer, longer = decodes(law, count, context, drafts), decodes(law, count, context, drafts)
    joined = longer._replace(
        decodes=count + 1,
        decode_context=longer.decode_context + 1 + drafts,
        decode_window_context=longer.decode_window_context + (min(1 + drafts, law.window)),
        sampled=count + 1,
        draft_tokens=longer.draft_tokens + drafts,
    )
    assert law.step_cost(fewer).device_ns <= law.step_cost(joined).device_ns


@pytest.mark.parametrize("model", MODELS)
def test_the_bound_counts_every_pair_of_query_and_key_once(model: str) -> None:
    law, spec, gpu = roofline(model), load_model(model), load_gpu("h100-sxm")
    fast = dataclasses.replace(gpu, hbm_bandwidth=1e30)
    bound = build_roofline(spec, fast, calibration="none", max_num_batched_tokens=8, max_num_seqs=8).bound_ns
    context, drafts = 100_000, 3
    with_drafts = bound(decodes(law, 1, context, drafts))
    # Beside attention, drafts cost what as many decodes without context do.
    tokens = bound(decodes(law, 1 + drafts, 1)) - bound(decodes(law, 1, 1))
    alone = bound(decodes(law, 1, context)) - bound(decodes(law, 1, 1))
    pairs = with_drafts - tokens - bound(decodes(law, 1, 1))
    if spec.window_layers:
        assert alone < pairs < (1 + drafts) * alone
    else:
        seen = [context - missing for missing in range(drafts + 1)]
        assert pairs == pytest.approx(alone * sum(seen) / context, rel=1e-4)
