"""The shapes to measure: which there are, and in which order."""

from __future__ import annotations

import pytest

from cost_models.calibration.schema import COMMON, REQUIRED, format_row
from cost_models.profiling.grid import (
    QUICK_LEVEL,
    Shape,
    build_grid,
    coarse_to_fine,
    elementwise_bytes,
    grid_of,
    levels,
    select,
)


def test_levels_halve_an_axis() -> None:
    assert levels(1) == [0]
    assert levels(2) == [0, 0]
    assert levels(5) == [0, 2, 1, 2, 0]
    assert levels(9) == [0, 3, 2, 3, 1, 3, 2, 3, 0]
    assert levels(6) == [0, 2, 1, 2, 3, 0]


@pytest.mark.parametrize("operator", REQUIRED)
def test_every_shape_makes_a_row_of_the_schema(operator: str) -> None:
    shapes = build_grid(operator, gpus=4)
    for shape in shapes:
        row = format_row({"gpu": "G", "operator": operator, **shape.cells, "latency_us": 1.0, "source": "s"})
        assert set(row) == {*COMMON, *REQUIRED[operator]}
    assert len({str(shape) for shape in shapes}) == len(shapes)
    assert build_grid(operator, gpus=4) == shapes


def corners(shapes: list[Shape], column: str) -> tuple[int, int]:
    values = [shape.number(column) for shape in shapes]
    return min(values), max(values)


@pytest.mark.parametrize(
    ("operator", "column"),
    [
        ("gemm", "m"),
        ("gemm", "n"),
        ("gemm", "k"),
        ("prefill_attention", "tokens"),
        ("prefill_attention", "context"),
        ("decode_attention", "batch"),
        ("decode_attention", "context"),
        ("moe", "tokens"),
        ("elementwise", "tokens"),
        ("p2p", "bytes"),
        ("all_reduce", "bytes"),
    ],
)
def test_a_tenth_of_the_grid_covers_the_range(operator: str, column: str) -> None:
    """Wherever measuring stops from there on, the whole range of each axis is covered."""
    shapes = build_grid(operator, gpus=2)
    tenth = shapes[: max(2, len(shapes) // 10)]
    assert corners(tenth, column) == corners(shapes, column)


def test_part_of_a_level_covers_the_grid() -> None:
    """A quarter of the finest level of the products has every size of every axis, in every format."""
    shapes = build_grid("gemm")
    finest = [shape for shape in shapes if shape.level == shapes[-1].level]
    part = finest[: len(finest) // 4]
    for column in ("dtype", "m", "n", "k"):
        assert {shape.cells[column] for shape in part} == {shape.cells[column] for shape in finest}


def test_coarse_grids_come_first_and_are_full() -> None:
    shapes = coarse_to_fine(grid_of("p2p", [{}], {"bytes": (1, 2, 3, 4, 5), "gpus": (1, 2, 3)}))
    assert [shape.level for shape in shapes] == sorted(shape.level for shape in shapes)
    at_most_one = {(shape.number("bytes"), shape.number("gpus")) for shape in shapes if shape.level <= 1}
    assert at_most_one == {(size, gpus) for size in (1, 3, 5) for gpus in (1, 2, 3)}


def test_the_products_span_what_calibration_needs() -> None:
    shapes = build_grid("gemm")
    layers = [shape for shape in shapes if shape.number("n") <= 32768]
    assert corners(layers, "m") == (1, 32768)
    assert corners(layers, "n") == corners(layers, "k") == (512, 32768)
    heads = [shape for shape in shapes if shape.number("n") > 32768]
    assert {shape.text("dtype") for shape in heads} == {"bf16"}
    assert corners(heads, "m") == (1, 1024)
    assert min(shape.number("m") for shape in shapes if shape.text("dtype") == "int8") > 16
    assert {shape.text("dtype") for shape in shapes} == {"bf16", "fp8", "int8"}


def test_attention_has_whole_prompts_chunks_windows_and_cold_keys() -> None:
    prefill = build_grid("prefill_attention")
    assert {shape.number("context") > 0 for shape in prefill} == {True, False}
    assert {shape.number("window") for shape in prefill} == {0, 128, 4096}
    decode = build_grid("decode_attention")
    sizes = [
        4 * shape.number("batch") * shape.number("context") * shape.number("kv_heads") * shape.number("head_dim")
        for shape in decode
    ]
    assert max(sizes) == 8 * 2**30


def test_experts_are_those_of_the_shipped_models() -> None:
    layers = {tuple(shape.number(c) for c in ("hidden", "width", "experts", "top_k")) for shape in build_grid("moe")}
    assert {(4096, 14336, 8, 2), (4096, 1792, 8, 2), (7168, 2048, 256, 8), (2880, 2880, 128, 4)} <= layers


def test_bytes_of_elementwise_kernels_by_hand() -> None:
    assert elementwise_bytes("norm", 3, 1000) == 3 * 4 * 2 * 1000  # x and residual, in and out
    assert elementwise_bytes("activation", 1, 1000) == (2 + 1) * 2 * 1000
    assert elementwise_bytes("embedding", 2, 1000) == 2 * 2 * 2 * 1000
    assert elementwise_bytes("rope", 5, 640) == 5 * (2 * 2 * 640 + 2 * 2 * 128)  # and a cosine and a sine an angle
    assert elementwise_bytes("sampling", 1, 100) == 3400


def test_selection() -> None:
    grid = build_grid("gemm")
    assert {shape.text("dtype") for shape in select(grid, ["fp8"], quick=False)} == {"fp8"}
    assert select(grid, None, quick=False) == grid
    assert {shape.level for shape in select(grid, None, quick=True)} == set(range(QUICK_LEVEL + 1))
    assert {shape.text("kv_dtype") for shape in select(build_grid("decode_attention"), ["bf16"], quick=True)} == {
        "bf16"
    }
    norms = build_grid("elementwise")
    assert select(norms, ["fp8"], quick=False) == norms
