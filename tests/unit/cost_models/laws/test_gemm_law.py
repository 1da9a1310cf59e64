"""The law of matrix products: monotone, never below the physical bounds, continuous, and element by element."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import CostModelError, load_gpu
from cost_models.files.fields import Fields
from cost_models.laws.gemm import GemmLaw, Waves
from cost_models.laws.table import Table
from cost_models.specs.dtypes import BITS

GPU = load_gpu("h100-sxm")
TOKENS = np.array([1.0, 16.0, 128.0, 1024.0, 8192.0])
SIDES = np.array([512.0, 4096.0, 16384.0])
AXES = ("tokens", "rows", "columns")
LAWS = {
    "plain": GemmLaw(GPU, "bf16", None, Table(AXES, (TOKENS, SIDES, SIDES), np.full((5, 3, 3), 1.3))),
    # The second table falls with the tokens, and below 1: what the bound and the order must catch.
    "waves": GemmLaw(
        GPU,
        "fp8_block",
        Waves(128, 256, 132, 0.5),
        Table(AXES, (TOKENS, SIDES, SIDES), np.linspace(3.0, 0.4, 45).reshape(5, 3, 3)),
    ),
}
laws = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
sides = st.integers(32, 65_536)


@laws
@settings(max_examples=30, deadline=None)
@given(rows=sides, columns=sides, bits=st.sampled_from([None, BITS["int4"], 8.0]))
def test_it_is_monotone_and_never_below_the_bounds(law: GemmLaw, rows: int, columns: int, bits: float | None) -> None:
    tokens = np.unique(np.geomspace(1, 200_000, 400).round())
    time = law.ns(rows, columns, tokens, bits)
    peak = GPU.peak("fp8" if law.dtype == "fp8_block" else law.dtype) / 1e9
    stored = bits or BITS["fp8" if law.dtype == "fp8_block" else law.dtype]
    assert np.all(np.diff(time) >= 0)
    assert np.all(time >= 2 * tokens * rows * columns / peak * (1 - 1e-12))
    assert np.all(time >= rows * columns * stored / 8 / (GPU.hbm_bandwidth / 1e9) * (1 - 1e-12))


@laws
@pytest.mark.parametrize("edge", [16.0, 128.0, 1024.0, 8192.0])
def test_it_is_continuous_at_knots_and_at_the_end_of_the_range(law: GemmLaw, edge: float) -> None:
    below, at, above = law.ns(4096, 3000, np.array([edge - 1e-6, edge, edge + 1e-6]))
    assert below == pytest.approx(at, rel=1e-6)
    assert above == pytest.approx(at, rel=1e-6)


@laws
def test_it_is_continuous_where_a_matrix_leaves_the_range(law: GemmLaw) -> None:
    tokens = np.array([1.0, 100.0, 5000.0])
    inside, beyond = (law.ns(rows, 4096, tokens) for rows in (16_384, 16_385))
    np.testing.assert_allclose(beyond, inside, rtol=1e-3)


@laws
def test_an_element_does_not_depend_on_the_others(law: GemmLaw) -> None:
    tokens = np.array([1.0, 3.0, 17.0, 129.0, 777.0, 8192.0, 8193.0, 50_000.0])
    together = law.ns(4096, 6144, tokens)
    alone = [float(law.ns(4096, 6144, np.array([count]))[0]) for count in tokens.tolist()]
    assert together.tolist() == alone


def test_beyond_the_range_it_grows_as_the_base_does() -> None:
    time = LAWS["plain"].ns(4096, 4096, np.array([10_000.0, 20_000.0]))
    assert time[1] - time[0] == pytest.approx(1.3 * 10_000 * 2 * 4096**2 / (GPU.peak("bf16") / 1e9))


def test_narrow_weights_save_traffic_and_no_arithmetic() -> None:
    law = LAWS["plain"]
    few, many = (law.ns(8192, 8192, np.array([count])) for count in (1.0, 8192.0))
    assert law.ns(8192, 8192, np.array([1.0]), 4.0)[0] < few[0] / 2
    assert law.ns(8192, 8192, np.array([8192.0]), 4.0)[0] == many[0]


def test_a_part_full_wave_costs_more_than_its_tiles() -> None:
    waves = Waves(128, 128, 132, 0.5)
    full, more = waves.products(128 * 132, np.array([128.0, 129.0]))
    assert full == 132 * 128 * 128
    assert more == 2 * full
    assert waves.products(128, np.array([128.0]))[0] == (0.5 * 132 + 0.5) * 128 * 128


def test_it_warns_outside_the_range() -> None:
    law = LAWS["plain"]
    assert law.outside(4096, 4096, 100) == []
    assert law.outside(100, 4096, 9000) == [
        "rows 100 (calibrated 512 to 16384)",
        "tokens 9000 (calibrated 1 to 8192)",
    ]


@laws
def test_it_is_written_and_read_back(law: GemmLaw) -> None:
    again = GemmLaw.from_json(Fields("law", json.loads(json.dumps(law.to_json()))), GPU, law.dtype)
    tokens = np.arange(1.0, 3000.0, 7)
    np.testing.assert_allclose(again.ns(3000, 5000, tokens), law.ns(3000, 5000, tokens), rtol=1e-3)
    assert again.waves == law.waves


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"waves": {"tokens": 1}}, r"law: waves\.columns: missing"),
        ({"table": {}}, r"law: table\.knots: missing"),
        ({"launch_ns": None}, "law: launch_ns: missing"),
        ({"launch_ns": float("nan")}, "law: launch_ns: expected a number"),
    ],
)
def test_what_is_no_law_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        GemmLaw.from_json(Fields("law", {**LAWS["waves"].to_json(), **change}), GPU, "bf16")
