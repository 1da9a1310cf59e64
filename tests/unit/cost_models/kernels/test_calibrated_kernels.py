"""Calibrated rooflines: their properties on shipped GPUs, notes on their ranges, and the reading of files."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import BatchShape, CostModelError, Roofline, load_gpu, load_model
from cost_models.errors import InputError
from cost_models.kernels.files import calibrated_path
from simulator.deployment.resolve import resolve
from simulator.scenario import parse_scenario
from tests.costs import build_roofline

#: Model, GPU, tensor parallelism, weights, KV cache: dense, windowed, MoE and MLA; in the formats that each GPU has.
DEPLOYMENTS = (
    ("llama-3.1-8b", "h100-sxm", 1, "bf16", "auto"),
    ("llama-3.1-70b", "h100-sxm", 4, "fp8", "fp8"),
    ("mistral-7b-v0.1", "h200-sxm", 1, "fp8", "auto"),
    ("mixtral-8x7b", "h100-sxm", 2, "bf16", "auto"),
    ("deepseek-v3", "h200-sxm", 8, "auto", "auto"),
    ("llama-3.1-8b", "a100-sxm-80gb", 1, "bf16", "auto"),
    ("mixtral-8x7b", "a100-sxm-80gb", 4, "bf16", "auto"),
    ("llama-3.1-8b", "l40s", 1, "fp8", "fp8"),
)
#: The longest steps that were measured, and the longest that are tabulated. (Of shorter ones, a token that begins
#: another wave of tiles costs several percent, on the GPU as in the law.)
EDGE_TOKENS = (32_768, 65_536)


@cache
def roofline(model: str, gpu: str, tensor_parallel: int, weights: str, kv_cache: str) -> Roofline:
    return build_roofline(
        load_model(model),
        load_gpu(gpu),
        tensor_parallel=tensor_parallel,
        weights=weights,
        kv_cache=kv_cache,
        max_num_batched_tokens=2048,
    )


def shape_of(window: int, contexts: list[int], chunks: list[tuple[int, int]]) -> BatchShape:
    """Return a step in which every decode and chunk samples a token."""
    in_window = sum(min(context, window) for context in contexts) if window else 0
    rows = len(contexts) + len(chunks)
    return BatchShape(len(contexts), sum(contexts), in_window, tuple(chunks), sampled=rows)


CONTEXTS = st.lists(st.integers(1, 100_000), max_size=300)
CHUNKS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 50_000)), max_size=3)
DEPLOYED = st.sampled_from(DEPLOYMENTS)


@settings(max_examples=150)
@given(DEPLOYED, CONTEXTS, CHUNKS, st.data())
def test_more_work_takes_no_less_time_and_none_less_than_the_bound(
    deployed: tuple[str, str, int, str, str], contexts: list[int], chunks: list[tuple[int, int]], data: st.DataObject
) -> None:
    law = roofline(*deployed)
    less = shape_of(law.window, contexts, chunks)
    longer = data.draw(st.integers(0, 300))
    added = data.draw(st.lists(st.integers(1, 1000), max_size=2))
    tokens, before = data.draw(st.tuples(st.integers(0, 50), st.integers(0, 50)))
    more_chunks = [(chunk + tokens, context + before) for chunk, context in chunks]
    more = shape_of(law.window, [context + longer for context in contexts] + added, more_chunks)
    time = law.step_cost(less).device_ns
    assert law.bound_ns(less) <= time <= law.step_cost(more).device_ns


@given(DEPLOYED, CONTEXTS.filter(bool), st.integers(1, 50))
def test_a_decode_run_equals_single_steps(
    deployed: tuple[str, str, int, str, str], contexts: list[int], steps: int
) -> None:
    law = roofline(*deployed)
    first = shape_of(law.window, contexts, [])
    singles = [first._replace(decode_context=first.decode_context + step * first.decodes) for step in range(steps)]
    assert law.decode_run(first, steps).tolist() == [law.step_cost(single).device_ns for single in singles]


@pytest.mark.parametrize("deployed", DEPLOYMENTS, ids=lambda each: "-".join(map(str, each)))
def test_one_token_more_changes_little_at_the_edges_of_the_range(deployed: tuple[str, str, int, str, str]) -> None:
    law = roofline(*deployed)
    for edge in EDGE_TOKENS:
        times = [law.step_cost(BatchShape(chunks=((edge + step, 0),))).device_ns for step in range(-2, 3)]
        assert all(abs(later / earlier - 1) < 0.02 for earlier, later in pairwise(times))
    for edge in (4096, 32_768, 131_072):
        contexts = [shape_of(law.window, [edge + step] * 8, []) for step in range(-2, 3)]
        times = [law.step_cost(shape).device_ns for shape in contexts]
        assert all(abs(later / earlier - 1) < 0.02 for earlier, later in pairwise(times))


# --- what a deployment says of its range


def notes(model: str, tensor_parallel: int) -> set[str]:
    """Return the codes of the notes on a deployment on H100s."""
    pool = {"gpu": "h100-sxm", "tensor_parallel": tensor_parallel}
    workload = {"arrivals": {"process": "all_at_once"}, "requests": 1, "prompt_tokens": 1, "output_tokens": 1}
    scenario = {"name": "test", "model": model, "workload": workload, "deployment": {"pools": {"main": pool}}}
    return {note.code for note in resolve(parse_scenario(json.dumps(scenario))).notes}


def test_a_usual_deployment_has_no_note_of_its_calibration() -> None:
    assert not notes("llama-3.1-8b", 1) & {"outside_calibrated_range", "not_calibrated"}


@pytest.mark.parametrize(
    ("changes", "text"), [({"ffn": 106_496}, "columns"), ({"head_dim": 80}, "head")], ids=["matrix", "head_dim"]
)
def test_dimensions_that_were_not_measured_are_named(changes: dict[str, int], text: str) -> None:
    usual = load_model("llama-3.1-8b")
    assert build_roofline(usual, load_gpu("h100-sxm")).outside == []
    unusual = dataclasses.replace(usual, **changes)
    assert any(text in found for found in build_roofline(unusual, load_gpu("h100-sxm")).outside)


def test_the_head_of_a_vocabulary_may_have_four_times_the_measured_columns() -> None:
    """Beyond them it is named, and by those columns that are compared."""

    def outside(vocab: int) -> list[str]:
        return build_roofline(
            dataclasses.replace(load_model("llama-3.1-8b"), vocab=vocab), load_gpu("h100-sxm")
        ).outside

    (text,) = outside(10**7)
    found = re.fullmatch(r"matrices with columns 2.5e\+06 \(calibrated \d+ to (\d+)\)", text)
    assert found is not None
    measured = int(found[1])
    assert outside(4 * measured) == []
    assert outside(4 * measured + 1) != []


def test_a_run_outside_the_measured_range_gives_a_note(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 106_496,
        "vocab_size": 32_000,
        "max_position_embeddings": 8192,
        "architectures": ["LlamaForCausalLM"],
        "tie_word_embeddings": False,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert "outside_calibrated_range" in notes(str(path), 1)


def test_fp8_weights_on_an_a100_are_read_narrow_and_told_so() -> None:
    shape = BatchShape(decodes=8, decode_context=8000, sampled=8)
    wide, narrow = (
        build_roofline(load_model("llama-3.1-8b"), load_gpu("a100-sxm-80gb"), weights=weights)
        for weights in ("bf16", "fp8")
    )
    assert narrow.step_cost(shape).device_ns < 0.7 * wide.step_cost(shape).device_ns
    assert wide.outside == []
    assert narrow.outside == ["matrices in fp8 (calibrated as bf16 with narrower weights)"]


# --- files


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(calibrated_path(load_gpu("h100-sxm")).read_text())
    return found


def scaled(path: Path, factor: float) -> int:
    """The time of a step with the values of the table of matrix products times `factor`, in the file at `path`."""
    changed = document()
    table = changed["operators"]["gemm"]["bf16"]["law"]["table"]
    table["values"] = [factor * value for value in table["values"]]
    path.write_text(json.dumps(changed))
    law = build_roofline(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), calibration=str(path))
    return law.step_cost(BatchShape(chunks=((4096, 0),))).device_ns


def test_changed_data_change_predictions(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    first, doubled, again = (scaled(path, factor) for factor in (1.0, 2.0, 1.0))
    assert first != doubled
    assert first == again


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a calibrated file: no operators"),
        ('{"gpu": "h100-sxm"}', "not a calibrated file: no operators"),
        ('{"gpu": "l40s", "operators": {}}', "is of 'l40s', not of h100-sxm"),
        ('{"gpu": "h100-sxm", "operators": {"gemm": {"bf16": {}}}}', "operators.gemm.bf16: law: missing"),
        (
            '{"gpu": "h100-sxm", "operators": {"gemm": {"bf16": {"law": {}}}}}',
            r"gemm.bf16: law.table: missing",
        ),
    ],
)
def test_a_wrong_file_gives_an_error_of_one_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(InputError, match=error) as raised:
        build_roofline(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), calibration=str(path))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="No such file"):
        build_roofline(load_model("llama-3.1-8b"), load_gpu("h100-sxm"), calibration=str(tmp_path / "own.json"))


def test_a_gpu_with_the_chip_of_another_has_its_kernels_at_its_own_bandwidth() -> None:
    """A100 with 40 and with 80 GB: the same arithmetic, 1,555 and 2,039 GB/s."""
    small, large = (build_roofline(load_model("llama-3.1-8b"), load_gpu(f"a100-sxm-{size}gb")) for size in (40, 80))
    assert small.calibrated
    assert small.outside[0] == "kernels of a100-sxm-80gb, at the peaks of a100-sxm-40gb"
    decode = BatchShape(decodes=1, decode_context=1000, sampled=1)
    assert 1.2 < small.step_cost(decode).device_ns / large.step_cost(decode).device_ns < 2039 / 1555
    prompt = BatchShape(chunks=((8192, 0),), sampled=1)
    own, other = small.breakdown(prompt), large.breakdown(prompt)
    assert own["ffn"] == other["ffn"]
    assert own["activation"] / other["activation"] == pytest.approx(2039 / 1555, rel=1e-4)
