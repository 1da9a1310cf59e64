"""The law of a mixture of experts, and how routing loads a GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.laws.moe import ExpertsLaw, Shape, base_ns, bound_ns
from cost_models.laws.routing import EVEN, UNIFORM, Routing, load
from cost_models.library import load_gpu
from cost_models.roofline.operands import Experts

H100 = load_gpu("h100-sxm")
MIXTRAL = Experts(hidden=4096, width=7168, experts=8, top_k=2, matrices=3, dtype="bf16")
#: Curves that rise and fall, so that a law that took them as they are would not be monotone.
LAW = ExpertsLaw(
    gpu=H100,
    dtype="bf16",
    launch_ns=24_000.0,
    tokens=np.array([1.0, 4.0, 64.0, 4096.0]),
    shapes=(Shape(4096, 7168, 8, 2, 1), Shape(2048, 768, 128, 8, 1), Shape(2048, 768, 128, 8, 8)),
    curves=np.array([[1.2, 1.5, 1.1, 1.6], [1.1, 1.0, 1.3, 2.0], [1.0, 1.4, 1.2, 1.1]]),
)
OPERANDS = st.builds(
    Experts,
    hidden=st.sampled_from([1024, 2048, 4096, 7168]),
    width=st.sampled_from([24, 96, 704, 2048, 16384]),
    experts=st.sampled_from([8, 64, 256]),
    top_k=st.sampled_from([1, 2, 8]),
    matrices=st.sampled_from([2, 3]),
    dtype=st.just("bf16"),
)
ROUTINGS = st.sampled_from([UNIFORM, EVEN, Routing(1.01), Routing(1.2, even=True)])


def test_a_measured_shape_keeps_its_own_curve() -> None:
    work = load(MIXTRAL, LAW.tokens, 1, EVEN)
    expected = base_ns(H100, MIXTRAL, LAW.tokens, work, LAW.launch_ns) * LAW.curves[0]
    assert LAW.ns(MIXTRAL, np.array([1.0, 4.0]), EVEN) == pytest.approx(expected[:2], rel=1e-4)


def test_base_by_hand() -> None:
    # One token: 2 of 8 experts of 3 x 4096 x 7168 BF16 numbers at 3.35 TB/s = 105,170.6 ns; activations of 2 pairs:
    # 2 x 2 bytes x (2 x 4096 + 6 x 7168) at 3.35 TB/s = 61.1 ns.
    one = np.array([1.0])
    assert base_ns(H100, MIXTRAL, one, load(MIXTRAL, one, 1, EVEN), 24_000.0)[0] == pytest.approx(129_231.7, abs=0.1)


@given(OPERANDS, ROUTINGS, st.sampled_from([1, 2, 8]))
def test_more_tokens_never_take_less(experts: Experts, routing: Routing, gpus: int) -> None:
    tokens = np.unique(np.concatenate([np.arange(1, 300), np.geomspace(300, 1e6, 60).round()]))
    assert (np.diff(LAW.ns(experts, tokens, routing, gpus)) >= 0).all()


@given(OPERANDS, st.sampled_from([UNIFORM, EVEN]), st.sampled_from([1, 2, 8]))
def test_never_below_the_bound(experts: Experts, routing: Routing, gpus: int) -> None:
    tokens = np.concatenate([np.arange(1.0, 200.0), [1e3, 1e5, 1e6]])
    bound = bound_ns(H100, experts, load(experts, tokens, gpus, routing))
    assert (LAW.ns(experts, tokens, routing, gpus) >= bound).all()


def test_curves_below_one_do_not_break_the_bound() -> None:
    low = ExpertsLaw(H100, "bf16", 24_000.0, LAW.tokens, LAW.shapes, LAW.curves * 0.1)
    bound = bound_ns(H100, MIXTRAL, load(MIXTRAL, LAW.tokens, 1, Routing(1.2)))
    assert low.ns(MIXTRAL, LAW.tokens, Routing(1.2)) == pytest.approx(np.maximum.accumulate(bound), rel=1e-12)


@given(OPERANDS, ROUTINGS)
def test_a_time_does_not_depend_on_the_others(experts: Experts, routing: Routing) -> None:
    tokens = np.array([1.0, 3.0, 17.0, 100.0, 5000.0, 200_000.0])
    alone = [LAW.ns(experts, np.array([count]), routing)[0] for count in tokens]
    assert LAW.ns(experts, tokens, routing).tolist() == alone


@pytest.mark.parametrize("knot", [4, 64, 4096, 131_072])
def test_continuous_at_knots_and_beyond_them(knot: int) -> None:
    before, at, after = LAW.ns(MIXTRAL, np.array([knot - 1e-6, knot, knot + 1e-6]))
    assert at - before < 1e-6 * at
    assert after - at < 1e-6 * at


def test_far_beyond_the_knots_time_grows_with_the_tokens() -> None:
    times = LAW.ns(MIXTRAL, np.array([1e6, 2e6]))
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.02)


def test_neighbours_in_width_take_similar_times() -> None:
    tokens = np.array([1.0, 64.0, 2048.0])
    near = MIXTRAL._replace(width=7232)
    assert LAW.ns(near, tokens) == pytest.approx(LAW.ns(MIXTRAL, tokens), rel=0.03)


def test_json_round_trip() -> None:
    again = ExpertsLaw.from_json(Fields("law", LAW.to_json()), H100)
    tokens = np.arange(1.0, 100.0)
    assert again.ns(MIXTRAL, tokens).tolist() == LAW.ns(MIXTRAL, tokens).tolist()


def test_json_that_is_no_law() -> None:
    for key, wrong, message in (
        ("shapes", None, "law: shapes: expected a list of lists"),
        ("shapes", [[1, 2]], r"law: shapes\[0\]: expected a list of 5 numbers"),
        ("tokens", [2, 1], "law: tokens: must be above 0 and increase"),
        ("curves", 1.5, "law: curves: expected a list of lists"),
        ("launch_ns", math.inf, "law: launch_ns: expected a number of at least 0 and at most 1e"),
    ):
        with pytest.raises(CostModelError, match=message):
            ExpertsLaw.from_json(Fields("law", {**LAW.to_json(), key: wrong}), H100)


def test_curves_that_do_not_fit() -> None:
    with pytest.raises(CostModelError, match="2 shapes, 4 knots do not fit curves"):
        ExpertsLaw(H100, "bf16", 1.0, LAW.tokens, LAW.shapes[:2], LAW.curves)


def test_outside() -> None:
    assert LAW.outside(MIXTRAL, 100) == []
    assert LAW.outside(MIXTRAL._replace(width=28_672), 8192) == [
        "width 28672 (calibrated 768 to 7168)",
        "tokens 8192 (calibrated 1 to 4096)",
    ]


def test_uniform_routing_touches_fewer_experts_than_even_routing_while_tokens_are_few() -> None:
    tokens = np.array([1.0, 4.0, 8.0, 1000.0])
    assert load(MIXTRAL, tokens, 1, EVEN).touched.tolist() == [2, 8, 8, 8]
    # 8 x (1 - (3/4)^n)
    assert load(MIXTRAL, tokens, 1, UNIFORM).touched == pytest.approx([2, 5.46875, 7.1991, 8], abs=1e-4)


def test_gpus_share_experts_and_pairs_but_one_of_them_has_a_pair_at_least() -> None:
    work = load(MIXTRAL, np.array([1.0, 100.0]), 4, EVEN)
    assert work.touched.tolist() == [1, 2]
    assert work.pairs.tolist() == [1, 50]


@pytest.mark.parametrize("gpus", [1, 8])
def test_skewed_routing(gpus: int) -> None:
    experts, tokens = Experts(2048, 768, 128, 8, 3, "bf16"), np.array([1.0, 32.0, 4096.0])
    even, skewed = load(experts, tokens, gpus, EVEN), load(experts, tokens, gpus, Routing(1.2, even=True))
    assert (skewed.touched[1:-1] < even.touched[1:-1]).all()
    if gpus == 1:
        assert skewed.pairs == pytest.approx(8 * tokens)
    else:
        assert (skewed.pairs[1:] > 1.05 * even.pairs[1:]).all()


def test_no_expert_gets_more_than_all_tokens() -> None:
    work = load(Experts(64, 64, 4, 4, 3, "bf16"), np.array([50.0]), 4, Routing(1.2, even=True))
    assert work.pairs == pytest.approx([50.0])


def test_experts_that_cannot_be_shared() -> None:
    with pytest.raises(CostModelError, match="expert_parallel 3 does not divide the 8 experts"):
        LAW.ns(MIXTRAL, np.array([1.0]), expert_parallel=3)


def test_negative_exponent() -> None:
    with pytest.raises(CostModelError, match=r"routing exponent: expected 0 .* or more: -1"):
        Routing(-1.0)
