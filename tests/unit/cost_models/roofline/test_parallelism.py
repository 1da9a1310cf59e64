"""Models cut into the stages of a pipeline, ranks that share experts: bytes, times, bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    BatchShape,
    CostModelError,
    EqualStages,
    LinearLaw,
    Roofline,
    StagedRoofline,
    kv_bytes_per_token,
    load_gpu,
    load_model,
    model_names,
    parameters,
    stages_of,
)
from cost_models.kernels.calibrated import CalibratedKernels
from cost_models.specs.placement import ExpertSplit
from tests.costs import build_pipeline, build_roofline, kv_capacity, weight_bytes
from tests.unit.cost_models.roofline.test_roofline import shape_of

H100, H200 = load_gpu("h100-sxm"), load_gpu("h200-sxm")
LLAMA, QWEN, DEEPSEEK = (load_model(name) for name in ("llama-3.1-70b", "qwen3-30b-a3b", "deepseek-r1"))
#: Dense; windows in half of the layers, MoE; MLA, MoE, dense layers first.
STAGED = (("llama-3.1-8b", 4), ("gpt-oss-120b", 3), ("deepseek-r1", 8))
#: (ranks, tensor parallelism, expert parallelism).
SPLITS = ((8, 1, True), (8, 1, False), (2, 4, True), (4, 2, False))


@cache
def staged(model: str, stages: int) -> StagedRoofline:
    return build_pipeline(load_model(model), H100, stages=stages, max_num_batched_tokens=512, max_num_seqs=64)


@cache
def whole(model: str) -> Roofline:
    return build_roofline(load_model(model), H100, max_num_batched_tokens=512, max_num_seqs=64)


@cache
def ranked(split: tuple[int, int, bool], calibration: str = "auto") -> Roofline:
    ranks, tensor_parallel, expert_parallel = split
    return build_roofline(
        DEEPSEEK,
        H200,
        tensor_parallel=tensor_parallel,
        data_parallel=ranks,
        expert_parallel=expert_parallel,
        max_num_batched_tokens=512,
        max_num_seqs=64,
        calibration=calibration,
    )


CONTEXTS = st.lists(st.integers(1, 30_000), max_size=40)
CHUNKS = st.lists(st.tuples(st.integers(1, 700), st.integers(0, 20_000)), max_size=2)


# --- stages


@pytest.mark.parametrize(
    ("model", "stages", "layers"),
    [
        ("llama-3.1-70b", 4, [20, 20, 20, 20]),
        ("llama-3.1-405b", 4, [31, 32, 32, 31]),
        ("deepseek-r1", 4, [15, 15, 16, 15]),
        ("deepseek-r1", 8, [7, 7, 8, 8, 8, 8, 8, 7]),
    ],
)
def test_layers_are_dealt_out_as_vllm_does(model: str, stages: int, layers: list[int]) -> None:
    parts = stages_of(load_model(model), stages)
    assert [part.model.layers for part in parts] == layers
    assert [part.first for part in parts] == [True] + [False] * (stages - 1)
    assert [part.last for part in parts] == [False] * (stages - 1) + [True]


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("name", model_names())
def test_stages_have_all_layers_between_them(name: str, stages: int) -> None:
    model = load_model(name)
    parts = [part.model for part in stages_of(model, stages)]
    for kind in ("layers", "window_layers", "full_layers", "moe_layers", "dense_layers"):
        assert sum(getattr(part, kind) for part in parts) == getattr(model, kind)
    assert all(
        part.moe_layers == 0 or not any(later.dense_layers for later in parts[i + 1 :]) for i, part in enumerate(parts)
    )


def test_stages_that_cannot_be() -> None:
    with pytest.raises(CostModelError, match=r"pipeline_parallel 81: llama-3.1-70b has 80 layers to share"):
        stages_of(LLAMA, 81)


# --- bytes


def test_the_fullest_stage_has_its_layers_and_an_end() -> None:
    counted = parameters(LLAMA)
    norms = 2 * 8192  # of one layer
    layers = (counted.total - counted.embedding - counted.lm_head - 8192) // 4
    assert layers == 20 * (counted.attention + counted.dense_ffn) // 80 + 20 * norms
    assert weight_bytes(LLAMA, pipeline_parallel=4) == 2 * (layers + counted.lm_head + 8192)


def test_a_tied_embedding_is_there_at_both_ends() -> None:
    model = load_model("qwen2.5-0.5b")
    counted = parameters(model)
    assert counted.lm_head == 0
    assert weight_bytes(model, pipeline_parallel=2) > 2 * counted.embedding + counted.attention


def test_blocks_of_a_stage_hold_its_layers() -> None:
    one, four = (kv_capacity(LLAMA, H100, weights="fp8", pipeline_parallel=stages) for stages in (1, 4))
    assert 4 * four.block_bytes == one.block_bytes == 16 * kv_bytes_per_token(LLAMA)
    assert four.blocks == four.kv_bytes // four.block_bytes - 1 > 4 * one.blocks


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_ranks_share_the_experts_and_nothing_else(expert_parallel: bool) -> None:
    one = parameters(DEEPSEEK)
    eight = parameters(DEEPSEEK, 1, ExpertSplit(8, expert_parallel))
    assert 8 * eight.experts == one.experts
    assert (eight.attention, eight.dense_ffn, eight.other) == (one.attention, one.dense_ffn, one.other)
    held = weight_bytes(DEEPSEEK, data_parallel=8, expert_parallel=expert_parallel)
    assert weight_bytes(DEEPSEEK) - held == 7 * one.experts // 8  # FP8
    assert weight_bytes(LLAMA, data_parallel=8) == weight_bytes(LLAMA)


def test_the_latent_of_every_token_is_on_its_rank_alone() -> None:
    """Eight ranks with an eighth of the experts each hold more tokens between them than TP 8, which replicates MLA's
    latent (the reason for data-parallel attention: DeepSeek-V3, 3.4)."""
    ranks = kv_capacity(DEEPSEEK, H200, data_parallel=8, expert_parallel=True)
    tensors = kv_capacity(DEEPSEEK, H200, tensor_parallel=8)
    assert ranks.block_bytes == tensors.block_bytes
    assert 8 * ranks.blocks > 5 * tensors.blocks


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("llama-3.1-70b", {"expert_parallel": True}, "expert_parallel: llama-3.1-70b has no experts"),
        (
            "qwen3-30b-a3b",
            {"data_parallel": 3, "expert_parallel": True},
            r"over 3 GPUs \(tensor_parallel x data_parallel\) does not divide the 128 experts",
        ),
    ],
)
def test_experts_that_cannot_be_split(model: str, settings: dict[str, int], message: str) -> None:
    for arithmetic in (weight_bytes, lambda spec, **keys: build_roofline(spec, H100, **keys)):
        with pytest.raises(CostModelError, match=message):
            arithmetic(load_model(model), **settings)


# --- times of stages


@given(kind=st.sampled_from(STAGED), contexts=CONTEXTS, chunks=CHUNKS, more=st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_stages_are_monotone_above_the_bound_and_add_up(
    kind: tuple[str, int], contexts: list[int], chunks: list[tuple[int, int]], more: int
) -> None:
    law = staged(*kind)
    shape = shape_of(law.window, contexts, chunks)
    times = law.stage_times(shape)
    assert len(times.stages_ns) == law.stages == len(times.sends_ns) + 1
    device_ns = law.step_cost(shape).device_ns
    assert sum(times.stages_ns) + sum(times.sends_ns) == device_ns == sum(law.breakdown(shape).values())
    assert law.bound_ns(shape) <= device_ns
    longer = law.stage_times(shape_of(law.window, [*contexts, more], chunks))
    assert all(before <= after for before, after in zip(times.stages_ns, longer.stages_ns, strict=True))
    assert all(before <= after for before, after in zip(times.sends_ns, longer.sends_ns, strict=True))


@pytest.mark.parametrize(("model", "stages"), STAGED)
def test_a_pipeline_does_the_work_of_the_whole_model(model: str, stages: int) -> None:
    """Without sends, the kernels of all stages together take as long as those of one GPU, except for rounding."""
    window = whole(model).window
    for shape in (shape_of(window, [3000] * 32, []), shape_of(window, [], [(512, 1000)])):
        together = sum(staged(model, stages).stage_times(shape).stages_ns)
        assert together == pytest.approx(whole(model).step_cost(shape).device_ns, rel=0.002)


def test_one_stage_is_the_model_itself() -> None:
    law, shape = staged("llama-3.1-8b", 1), shape_of(0, [300, 40], [(100, 0)])
    device_ns, host_ns, _ = whole("llama-3.1-8b").step_cost(shape)
    assert law.stage_times(shape) == ((device_ns,), (), host_ns)


def test_sends_beyond_the_table_go_on() -> None:
    law = staged("llama-3.1-8b", 4)
    times = [law.stage_times(BatchShape(chunks=((tokens, 0),))).sends_ns for tokens in range(510, 516)]
    assert times == sorted(times)
    assert times[-1][0] < 1.05 * times[0][0]


def test_a_run_of_steps_equals_single_ones() -> None:
    law = staged("gpt-oss-120b", 3)
    shape = shape_of(law.window, [500, 40], [])
    runs = law.decode_run(shape, 5)
    shapes = [shape._replace(decode_context=shape.decode_context + 2 * step) for step in range(5)]
    assert runs.tolist() == [law.step_cost(each).device_ns for each in shapes]


def test_a_stage_that_fills_a_server_sends_over_the_network() -> None:
    shape = shape_of(0, [], [(512, 0)])
    within = build_pipeline(LLAMA, H100, stages=2, tensor_parallel=4, max_num_batched_tokens=512)
    across = build_pipeline(LLAMA, H100, stages=2, tensor_parallel=8, max_num_batched_tokens=512)
    sent = 2 * 512 * 8192 * 2  # hidden state and residual in BF16
    for law, link in ((within, "node"), (across, "network")):
        (time,) = law.stage_times(shape).sends_ns
        assert time == np.ceil(law._kernels.send_ns(link, np.array([float(sent)])))[0]
    assert within.stage_times(shape).sends_ns < across.stage_times(shape).sends_ns
    assert within.stage_times(BatchShape()).sends_ns == (0,)


def test_equal_stages_of_a_law_add_up_to_it() -> None:
    law = LinearLaw(base_ns=10, per_token_ns=1, host_ns=7)
    shape = shape_of(0, [5, 5, 5], [])
    assert EqualStages(law, 4).stage_times(shape) == ((3, 3, 3, 4), (0, 0, 0), 7)
    assert EqualStages(law, 4).step_cost(shape) == law.step_cost(shape)


# --- times of ranks


@given(
    split=st.sampled_from(SPLITS),
    contexts=CONTEXTS,
    chunks=CHUNKS,
    others=st.lists(CONTEXTS, min_size=1, max_size=3),
    more=st.integers(1, 100),
)
@settings(max_examples=60, deadline=None)
def test_ranks_together(
    split: tuple[int, int, bool],
    contexts: list[int],
    chunks: list[tuple[int, int]],
    others: list[list[int]],
    more: int,
) -> None:
    law, ranks = ranked(split), split[0]
    shape = shape_of(0, contexts, chunks)
    alike = law.step_cost(shape)
    assert law.bound_ns(shape) <= alike.device_ns == sum(law.breakdown(shape).values())
    if shape.tokens:
        assert law.lockstep_cost([shape] * ranks) == alike
    shapes = [shape_of(0, other, []) for other in others]
    before = law.lockstep_cost([shape, *shapes])
    after = law.lockstep_cost([shape_of(0, [*contexts, more], chunks), *shapes])
    assert before.device_ns <= after.device_ns
    assert before.device_ns >= law.lockstep_cost([shape]).device_ns
    assert before == law.lockstep_cost([*shapes, BatchShape(), shape])


def test_a_rank_that_prefills_holds_up_all() -> None:
    law = ranked((8, 1, True))
    decode, prefill = shape_of(0, [1000] * 16, []), shape_of(0, [], [(512, 0)])
    mixed = law.lockstep_cost([decode] * 7 + [prefill]).device_ns
    assert mixed > 1.1 * law.step_cost(decode).device_ns
    assert law.lockstep_cost([decode] * 7 + [BatchShape()]).device_ns <= law.step_cost(decode).device_ns
    assert law.lockstep_cost([BatchShape()] * 8) == (0, 0, 0)


def test_an_idle_rank_takes_part_with_one_token() -> None:
    """As in runs of vLLM since 0.11 (vllm-project/vllm#25407): 31.7 ms a token with one sequence on eight ranks, 30.1
    with 32."""
    law, one = ranked((8, 1, True)), shape_of(0, [1000], [])
    assert law.lockstep_cost([one] + [BatchShape()] * 7) == law.step_cost(one)


def test_within_a_rank_experts_are_split_without_an_exchange() -> None:
    """TP 4 with expert parallelism: tokens are on all GPUs already, and the all-reduce adds up what each computed."""
    sharded, spread = (
        build_roofline(QWEN, H100, tensor_parallel=4, expert_parallel=whole_ones) for whole_ones in (False, True)
    )
    shape = shape_of(0, [1000] * 64, [])
    parts = [law.breakdown(shape) for law in (sharded, spread)]
    assert {name for name in parts[0] if parts[0][name] != parts[1][name]} == {"moe"}
    assert "all_to_all" not in parts[1]


@pytest.mark.parametrize("calibration", ["auto", "none"])
def test_tables_of_ranks_end_where_the_formula_goes_on(calibration: str) -> None:
    law = ranked((8, 1, True), calibration)
    edge = 512 + 64
    times = [law.step_cost(BatchShape(chunks=((tokens, 0),))).device_ns for tokens in range(edge - 2, edge + 3)]
    assert times == sorted(times)
    assert times[-1] < 1.01 * times[0]


def test_more_gpus_than_the_exchange_is_known_for() -> None:
    with pytest.raises(CostModelError, match="all-to-all of h200-sxm is known for up to 8 GPUs, not for the 16"):
        ranked((16, 1, True))


# --- tables


@pytest.mark.parametrize("max_num_batched_tokens", [512, 65_536, 1_000_000])
def test_tables_ask_each_law_a_few_times_whatever_the_budget(
    max_num_batched_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call a law for all numbers of tokens, of at most as many as are tabulated; not one a token."""
    calls: list[int] = []
    for law in (CalibratedKernels.experts_ns, CalibratedKernels.all_to_all_ns, CalibratedKernels.decode_attention):

        def counted(*arguments: Any, law: Callable[..., Any] = law) -> Any:
            calls.extend(len(counts) for counts in arguments if isinstance(counts, np.ndarray))
            return law(*arguments)

        monkeypatch.setattr(CalibratedKernels, law.__name__, counted)
    roofline = build_roofline(QWEN, H200, data_parallel=4, max_num_batched_tokens=max_num_batched_tokens)
    assert len(calls) <= 8
    assert max(calls) <= 65_536 + 1
    calls.clear()
    equal = [shape_of(0, [], [(8192, 0)])] * 4
    assert roofline.lockstep_cost(equal) == roofline.step_cost(equal[0])


def test_a_table_holds_what_each_count_takes_alone() -> None:
    """This holds also if the ranks together have more tokens than the experts' table."""
    roofline = build_roofline(QWEN, H200, data_parallel=8, expert_parallel=True, max_num_batched_tokens=16_384)
    for tokens in (1, 2, 8191, 8192, 8193, 10_000, 16_384):
        assert roofline._token_table[tokens] == sum(roofline._token_parts(tokens).values())
