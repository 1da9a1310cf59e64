"""The laws of all-reduces, copies and elementwise kernels."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models import CostModelError, load_gpu
from cost_models.files.fields import Fields
from cost_models.laws.communication import AllReduceLaw, P2pLaw
from cost_models.laws.curve import Curve, monotone
from cost_models.laws.elementwise import GRAPH_SHARE, ElementwiseLaw

GPU = load_gpu("h100-sxm")
CURVE = Curve(np.array([256.0, 1024.0, 4096.0]), np.array([4000.0, 4000.0, 5000.0]), 0.01)
ALL_REDUCE = AllReduceLaw(GPU, {2: CURVE, 8: Curve(CURVE.at, 2 * CURVE.times, 0.0)})


def test_a_curve_is_flat_then_linear_then_goes_on() -> None:
    found = CURVE.ns(np.array([1.0, 256.0, 1024.0, 2560.0, 4096.0, 5096.0]))
    assert found.tolist() == [4000.0, 4000.0, 4000.0, 4500.0, 5000.0, 5010.0]


def test_an_element_of_a_curve_does_not_depend_on_the_others() -> None:
    sizes = np.geomspace(1, 1e6, 97)
    assert CURVE.ns(sizes).tolist() == [float(CURVE.ns(np.array([size]))[0]) for size in sizes.tolist()]


def test_a_monotone_sequence_is_between_the_bounds_of_the_given_one() -> None:
    assert monotone(np.array([1.0, 3.0, 2.0, 4.0])).tolist() == [1.0, 2.5, 2.5, 4.0]


@pytest.mark.parametrize(("at", "times"), [([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])])
def test_a_curve_needs_increasing_knots(at: list[float], times: list[float]) -> None:
    with pytest.raises(CostModelError, match="two knots"):
        Curve(np.array(at), np.array(times), 0.0)


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_all_reduce_is_monotone_and_never_below_the_link(gpus: int) -> None:
    sizes = np.geomspace(1, 1e10, 200)
    time = ALL_REDUCE.ns(gpus, sizes)
    assert np.all(np.diff(time) >= 0)
    assert np.all(time >= sizes / (GPU.nvlink_bandwidth / 1e9) * (1 - 1e-12))


def test_all_reduce_takes_the_next_larger_group_and_says_so() -> None:
    size = np.array([500.0])
    assert ALL_REDUCE.ns(4, size) == ALL_REDUCE.ns(8, size)
    assert ALL_REDUCE.outside(4, 500) == ["gpus 4 (calibrated 2, 8)"]
    assert ALL_REDUCE.outside(2, 10_000) == ["bytes 10000 (calibrated 256 to 4096)"]


def test_more_gpus_than_measured_are_an_error() -> None:
    with pytest.raises(CostModelError, match=r"tensor_parallel 16.*h100-sxm was measured on 2, 8 GPUs only"):
        ALL_REDUCE.ns(16, np.array([500.0]))


def test_elementwise_takes_the_longer_of_floor_and_traffic() -> None:
    law = ElementwiseLaw(GPU, 4000.0, 0.5)
    few, many = law.ns(1000.0, np.array([1.0, 1e6]))
    assert few == 4000.0 * GRAPH_SHARE
    assert many == pytest.approx(1e9 / (GPU.hbm_bandwidth * 0.5) * 1e9)
    assert law.alone_ns(1000.0, np.array([1.0]))[0] == 4000.0


def test_laws_are_written_and_read_back() -> None:
    sizes = np.geomspace(1, 1e9, 50)
    elementwise = ElementwiseLaw(GPU, 4125.0, 0.4321)
    assert ElementwiseLaw.from_json(Fields("law", elementwise.to_json()), GPU) == elementwise
    assert P2pLaw.from_json(Fields("law", P2pLaw(CURVE).to_json())).ns(sizes).tolist() == CURVE.ns(sizes).tolist()
    again = AllReduceLaw.from_json(Fields("law", ALL_REDUCE.to_json()), GPU)
    assert again.ns(8, sizes).tolist() == ALL_REDUCE.ns(8, sizes).tolist()


def test_what_is_no_law_is_refused() -> None:
    for read, message in (
        (ElementwiseLaw.from_json, "law: launch_ns: missing"),
        (AllReduceLaw.from_json, r"law: gpus\.two: expected a number of GPUs"),
    ):
        with pytest.raises(CostModelError, match=message):
            read(Fields("law", {"gpus": {"two": {}}}), GPU)
    with pytest.raises(CostModelError, match="law: ns: missing"):
        P2pLaw.from_json(Fields("law", {"at": [1, 2]}))
