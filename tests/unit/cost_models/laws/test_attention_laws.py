"""Measured attention: monotone, above the physical bound, continuous, and the same however it is asked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import CostModelError, load_gpu
from cost_models.files.fields import Fields
from cost_models.kernels.contract import DecodeCost
from cost_models.laws.attention import AttentionLaws
from cost_models.laws.decode_attention import DecodeKind
from cost_models.laws.lines import line
from cost_models.laws.prefill_attention import PrefillKind
from cost_models.roofline.operands import Heads, causal_keys, causal_pairs

GPU = load_gpu("h100-sxm")
LLAMA_8B = Heads(32, 8, 128, 128, "bf16")
MLA = Heads(16, 1, 192, 128, "bf16", latent=576, kv_lora_rank=512)

SPLIT = DecodeKind(
    kv_dtype="bf16",
    head_dim=128,
    shared=True,
    launch_pairs=np.array([128.0, 512, 2048]),
    launch_ns=np.array([16_000.0, 25_000, 60_000]),
    saved_ns=np.array([4_000.0, 1_000, 0]),
    query=2.0,
    rate_pairs=np.array([1.0]),
    rate=np.array([1.05]),
)
#: Each sequence and KV head is one thread block: with few of them most of the GPU is idle.
UNSPLIT = SPLIT._replace(shared=False, rate_pairs=np.array([1.0, 64, 256]), rate=np.array([90.0, 1.5, 1.2]))
LATENT = SPLIT._replace(head_dim=192, latent=True, heads=16)
PROMPT = PrefillKind(
    kv_dtype="bf16",
    head_dim=128,
    launch_ns=12_000.0,
    new=1.4,
    earlier=1.2,
    query=1.8,
    kv_heads=np.array([1.0, 8, 64]),
    token_ns=np.array([1.0, 6, 28]),
    serial_ns=7.0,
    context_serial_ns=26.0,
)
LAWS = AttentionLaws(GPU, (SPLIT, UNSPLIT, LATENT), (PROMPT, PROMPT._replace(head_dim=192, latent=True, heads=16)))

HEADS = st.sampled_from([LLAMA_8B, MLA, Heads(8, 8, 128, 128, "bf16"), Heads(8, 1, 64, 64, "fp8")])
SPLIT_HEADS = st.sampled_from([LLAMA_8B, MLA, Heads(64, 8, 128, 128, "fp8")])
LENGTHS = st.integers(1, 200_000)


def decode_ns(heads: Heads, decodes: int, keys: float) -> float:
    launch, key, saved, cold = LAWS.decode_attention(heads, np.array([decodes], float))
    return float((launch + key * keys - saved * max(0.0, 1 - keys / cold))[0])


def work_ns(heads: Heads, tokens: float, context: float, window: int = 0) -> float:
    cost = LAWS.prefill_attention(heads)
    return float(cost.work_ns(np.array([float(tokens)]), np.array([float(context)]), window)[0])


@given(SPLIT_HEADS, st.lists(LENGTHS, min_size=1, max_size=400), LENGTHS)
def test_no_further_decode_shortens_a_step_where_kernels_split_keys(
    heads: Heads, contexts: list[int], more: int
) -> None:
    assert decode_ns(heads, len(contexts), sum(contexts)) <= decode_ns(heads, len(contexts) + 1, sum(contexts) + more)


@given(HEADS, st.integers(1, 3000), LENGTHS)
def test_a_decode_as_long_as_the_others_never_shortens_a_step(heads: Heads, decodes: int, context: int) -> None:
    less, more = decode_ns(heads, decodes, decodes * context), decode_ns(heads, decodes + 1, (decodes + 1) * context)
    assert less <= more * (1 + 1e-12)


@given(HEADS, st.integers(1, 3000), LENGTHS, st.integers(0, 100))
def test_decodes_grow_with_their_keys_and_keep_to_the_bound(
    heads: Heads, decodes: int, context: int, further: int
) -> None:
    keys = decodes * context
    time = decode_ns(heads, decodes, keys)
    assert time <= decode_ns(heads, decodes, keys + further)
    assert time >= 1e9 * keys * heads.key_bytes / GPU.hbm_bandwidth
    assert time >= 1e9 * keys * heads.key_flops / GPU.peak(heads.kv_dtype)


def test_short_calls_spare_less_the_more_they_read() -> None:
    cost = LAWS.decode_attention(LLAMA_8B, np.array([16.0]))
    assert decode_ns(LLAMA_8B, 16, 0) == pytest.approx(cost.launch[0] - 4_000)
    assert cost.cold_keys * LLAMA_8B.key_bytes == 1.5 * GPU.l2_bytes
    assert decode_ns(LLAMA_8B, 16, cost.cold_keys) == pytest.approx(cost.launch[0] + cost.key[0] * cost.cold_keys)


def test_a_key_is_slower_where_few_blocks_read_and_none_splits_its_keys() -> None:
    few, many = (LAWS.decode_attention(Heads(8, 8, 128, 128, "bf16"), np.array([n])).key[0] for n in (1.0, 32.0))
    assert few / many == pytest.approx(90 / 8 / 1.2, rel=0.1)
    split = LAWS.decode_attention(LLAMA_8B, np.array([1.0, 32.0])).key
    assert split[0] == split[1]


@settings(max_examples=200)
@given(HEADS, LENGTHS, st.integers(0, 200_000), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 128, 8192]))
def test_prefill_grows_and_keeps_to_the_bound(
    heads: Heads, tokens: int, context: int, longer: int, later: int, window: int
) -> None:
    work = work_ns(heads, tokens, context, window)
    roughly = 1 + 1e-12  # sums and products in another order differ in their last bits
    assert work <= work_ns(heads, tokens + longer, context + later, window) * roughly
    at = np.array([float(tokens)]), np.array([float(context)]), window
    assert work * roughly >= 1e9 * causal_pairs(*at)[0] * heads.pair_flops / GPU.peak(heads.kv_dtype)
    assert work * roughly >= 1e9 * causal_keys(*at)[0] * heads.key_bytes / GPU.hbm_bandwidth


def test_one_alone_and_many_together_cost_the_same_bits() -> None:
    decodes = np.arange(0, 5000, 7, dtype=float)
    together = LAWS.decode_attention(LLAMA_8B, decodes)
    alone = [LAWS.decode_attention(LLAMA_8B, decodes[i : i + 1]) for i in range(len(decodes))]
    for field in ("launch", "key", "saved"):
        assert getattr(together, field).tolist() == [getattr(one, field)[0] for one in alone]
    tokens, context = decodes + 1, decodes * 3
    work = LAWS.prefill_attention(LLAMA_8B).work_ns(tokens, context, 1024)
    assert work.tolist() == [work_ns(LLAMA_8B, t, c, 1024) for t, c in zip(tokens, context, strict=True)]


@pytest.mark.parametrize("pairs", [128, 512, 2048])
def test_launches_are_continuous_at_knots_and_beyond(pairs: int) -> None:
    near = LAWS.decode_attention(Heads(4, 1, 128, 128, "bf16"), np.array([pairs - 1e-6, pairs + 1e-6]))
    assert near.launch[1] == pytest.approx(near.launch[0], rel=1e-6)
    assert near.saved[1] == pytest.approx(near.saved[0], rel=1e-6, abs=1e-2)


def test_lines_go_on_beyond_their_last_knot_and_stay_before_the_first() -> None:
    found = line(np.array([2.0, 4.0]), np.array([10.0, 30.0]), np.array([0.0, 2.0, 3.0, 4.0, 6.0]))
    assert found.tolist() == [10.0, 10.0, 20.0, 30.0, 50.0]
    assert line(np.array([2.0]), np.array([7.0]), np.array([1.0, 9.0])).tolist() == [7.0, 7.0]


def test_the_nearest_kind_serves_with_its_own_rates() -> None:
    fp8 = LAWS.decode_attention(LLAMA_8B._replace(kv_dtype="fp8"), np.array([1.0]))
    bf16 = LAWS.decode_attention(LLAMA_8B, np.array([1.0]))
    assert fp8.key[0] == bf16.key[0] / 2
    narrow = LAWS.decode_attention(Heads(32, 8, 80, 80, "bf16"), np.array([1.0]))
    assert narrow.key[0] == pytest.approx(bf16.key[0] * 80 / 128)
    fp16 = LAWS.decode_attention(LLAMA_8B._replace(kv_dtype="fp16"), np.array([1.0]))
    assert fp16.key[0] == bf16.key[0]


def test_what_was_not_measured_is_named() -> None:
    assert LAWS.outside(LLAMA_8B) == []
    assert LAWS.outside(MLA) == []
    assert LAWS.outside(Heads(32, 8, 80, 80, "fp8")) == [
        "decode attention with head_dim 80 (calibrated: 128)",
        "decode attention with a KV cache in fp8 (calibrated: bf16)",
        "prefill attention with head_dim 80 (calibrated: 128)",
        "prefill attention with a KV cache in fp8 (calibrated: bf16)",
    ]
    assert LAWS.outside(MLA._replace(heads=128))[0] == "decode attention with 128 MLA heads a GPU (calibrated: 16)"
    wide = Heads(96, 96, 128, 128, "bf16")
    assert LAWS.outside(wide) == ["prefill attention with 96 KV heads a GPU (calibrated up to 64)"]
    without = AttentionLaws(GPU, (SPLIT,), (PROMPT,))
    assert without.outside(MLA)[0] == "decode attention with MLA (calibrated without)"


def test_laws_survive_being_written_down() -> None:
    again = AttentionLaws.from_json(Fields("law", json.loads(json.dumps(LAWS.to_json()))), GPU)
    assert again.to_json() == LAWS.to_json()
    for heads in (LLAMA_8B, MLA):
        costs: list[DecodeCost] = [law.decode_attention(heads, np.array([40.0])) for law in (LAWS, again)]
        assert costs[0] == costs[1]
        assert again.prefill_attention(heads) == LAWS.prefill_attention(heads)


def test_other_calibration_data_change_the_cost() -> None:
    data = LAWS.to_json()
    data["decode"][0]["rate"] = [1.5]
    changed = AttentionLaws.from_json(Fields("law", data), GPU).decode_attention(LLAMA_8B, np.array([8.0]))
    assert changed.key[0] == pytest.approx(LAWS.decode_attention(LLAMA_8B, np.array([8.0])).key[0] * 1.5 / 1.05)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data.pop("prefill"), "law: prefill: missing"),
        (lambda data: data["decode"][0].pop("rate"), r"law: decode\[0\]\.rate: missing"),
        (lambda data: data["prefill"][0].update(new="fast"), r"law: prefill\[0\]\.new: expected a number"),
        (lambda data: data.update(decode=[]), "the calibrated attention of h100-sxm has no decode law"),
    ],
)
def test_damaged_files_are_refused(damage, message: str) -> None:  # type: ignore[no-untyped-def]
    data = LAWS.to_json()
    damage(data)
    with pytest.raises(CostModelError, match=message):
        AttentionLaws.from_json(Fields("law", data), GPU)
