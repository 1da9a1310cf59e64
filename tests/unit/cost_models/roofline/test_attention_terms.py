"""Attention in the roofline: totals of decodes, and chunks one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import load_gpu, load_model
from cost_models.kernels.estimated import EstimatedKernels
from cost_models.roofline.architecture import attention_heads
from cost_models.roofline.attention import DecodeTerms, PrefillLaw

TIMES = st.floats(0, 1e7)


@given(TIMES, TIMES, TIMES, TIMES, st.floats(1, 1e7), st.lists(st.integers(0, 10**7)), st.integers(0, 10**7))
def test_runs_of_steps_are_single_steps_to_the_bit(
    launch: float, full: float, window: float, saved: float, cold: float, keys: list[int], seen: int
) -> None:
    terms = DecodeTerms(launch, full, window, saved, cold)
    assert terms.run_ns(np.array(keys, dtype=np.int64), seen).tolist() == [terms.ns(context, seen) for context in keys]


def test_short_calls_spare_in_proportion_to_what_is_missing() -> None:
    terms = DecodeTerms(launch=1000.0, full=1.0, window=2.0, saved=400.0, cold_keys=200.0)
    assert terms.ns(0, 0) == 1000 - 400
    assert terms.ns(50, 100) == 1000 + 50 + 200 - 300
    assert terms.ns(200, 300) == 1000 + 200 + 600


def test_a_key_of_the_earlier_context_may_be_slower_than_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    kernels, heads = EstimatedKernels(gpu), attention_heads(model, 8, "bf16")
    cost = kernels.prefill_attention(heads)
    usual = PrefillLaw(model, kernels, heads, 1.0).ns(((16, 20_000),))
    slower = type(cost)(cost.launch_ns, cost.serial_ns, 2 * cost.serial_ns, cost.pair_ns, cost.key_ns)
    monkeypatch.setattr(EstimatedKernels, "prefill_attention", lambda *_: slower)
    extra = PrefillLaw(model, kernels, heads, 1.0).ns(((16, 20_000),)) - usual
    assert extra == pytest.approx(model.layers * 20_000 * cost.serial_ns)
