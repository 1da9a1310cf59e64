"""The CSV of kernel timings: errors about every mistake, and equal rows after writing and reading."""

from __future__ import annotations

import pytest

from cost_models import CostModelError
from cost_models.calibration.schema import COLUMNS, COMMON, REQUIRED, WORDS, check_header, format_row, parse_row

GEMM = {"gpu": "H100", "operator": "gemm", "dtype": "bf16", "m": "16", "n": "4096", "k": "512"} | {
    "latency_us": "7.25",
    "source": "torch linear",
}
PREFILL = {
    "gpu": "H100",
    "operator": "prefill_attention",
    "kv_dtype": "bf16",
    "batch": "1",
    "heads": "32",
    "kv_heads": "8",
    "head_dim": "128",
    "window": "0",
    "tokens": "64",
    "context": "0",
    "latency_us": "20",
    "source": "flash",
}


def test_the_columns_are_those_that_operators_need() -> None:
    needed = {column for columns in REQUIRED.values() for column in columns}
    assert set(COLUMNS) == needed | set(COMMON)
    assert len(set(COLUMNS)) == len(COLUMNS)
    assert set(WORDS) < set(COLUMNS)


def test_a_row_is_read_with_its_types() -> None:
    empty = dict.fromkeys(COLUMNS, "")
    row = parse_row(empty | GEMM, "x.csv:2")
    assert row == GEMM | {"m": 16, "n": 4096, "k": 512, "latency_us": 7.25}
    assert parse_row(PREFILL, "x.csv:2")["context"] == 0


def test_a_written_row_is_read_back() -> None:
    row = parse_row(GEMM, "x")
    assert parse_row(format_row(row), "x") == row
    assert format_row(row | {"latency_us": 1.23456})["latency_us"] == "1.235"
    with pytest.raises(
        CostModelError, match=r"^measurement: latency_us: expected microseconds above 0, found '0\.000'$"
    ):
        format_row(row | {"latency_us": 0.0001})


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (GEMM, {"operator": "gem"}, r"unknown operator 'gem'; did you mean gemm\?"),
        (GEMM, {"operator": ""}, "unknown operator ''"),
        (GEMM, {"m": ""}, "m: missing; gemm needs gpu, operator, latency_us, source, dtype, m, n, k"),
        (GEMM, {"heads": "8"}, "heads: does not apply to gemm; leave it empty"),
        (GEMM, {"dtype": "bf17"}, r"dtype: unknown value 'bf17'; did you mean bf16\?"),
        (GEMM, {"m": "0"}, "m: expected an integer of at least 1, found '0'"),
        (GEMM, {"m": "1.5"}, "m: expected an integer of at least 1, found '1.5'"),
        (GEMM, {"m": "-3"}, "m: expected an integer of at least 1, found '-3'"),
        (GEMM, {"latency_us": "0"}, "latency_us: expected microseconds above 0, found '0'"),
        (GEMM, {"latency_us": "inf"}, "latency_us: expected microseconds above 0, found 'inf'"),
        (GEMM, {"latency_us": "fast"}, "latency_us: expected microseconds above 0, found 'fast'"),
        (PREFILL, {"kv_heads": "33"}, "kv_heads: 33 is more than the 32 heads"),
        (PREFILL, {"kv_heads": "5"}, "kv_heads: 5 does not divide the 32 heads"),
        (PREFILL, {"kv_dtype": "int8"}, "kv_dtype: unknown value 'int8'"),
    ],
)
def test_mistakes_in_a_row_are_named(base: dict[str, str], change: dict[str, str], message: str) -> None:
    with pytest.raises(CostModelError, match=f"^x.csv:7: {message}"):
        parse_row(base | change, "x.csv:7")


def test_counts_with_limits_of_their_own() -> None:
    common = {"gpu": "H100", "latency_us": "9", "source": "nccl"}
    alone = common | {"operator": "all_reduce", "gpus": "1", "bytes": "8"}
    with pytest.raises(CostModelError, match="gpus: expected an integer of at least 2, found '1'"):
        parse_row(alone, "x")
    experts = {"dtype": "fp8", "tokens": "1", "hidden": "8", "width": "8", "experts": "4", "top_k": "5"}
    with pytest.raises(CostModelError, match="top_k: 5 is more than the 4 experts"):
        parse_row(common | {"operator": "moe"} | experts, "x")


def test_headers() -> None:
    check_header(COLUMNS, "x.csv")
    check_header(["latency_us", "source", "m", "n", "k", "dtype", "operator", "gpu"], "x.csv")
    with pytest.raises(
        CostModelError, match=r"^x.csv: unknown column 'latency_ms'; did you mean latency_us or tokens\?"
    ):
        check_header(["latency_ms"], "x.csv")
    with pytest.raises(CostModelError, match=r"^x\.csv: column gpu is given twice; remove one$"):
        check_header(["gpu", "gpu"], "x.csv")
    with pytest.raises(CostModelError, match=r"^x\.csv: column source is missing; every row needs it$"):
        check_header(["gpu", "operator", "latency_us"], "x.csv")
