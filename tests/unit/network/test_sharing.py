"""Rates of flows over shared links: examples, and what makes them max-min fair."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.network import Demand, fifo, max_min

GB = 10**9


def test_two_links_of_which_one_is_narrow() -> None:
    """A has 10 GB/s, B 4: flows over A, over both, and over B."""
    demands = [Demand((0,)), Demand((0, 1)), Demand((1,))]
    assert max_min(demands, [10 * GB, 4 * GB]) == [8 * GB, 2 * GB, 2 * GB]


def test_what_a_capped_flow_leaves_is_shared() -> None:
    demands = [Demand((0,), cap=1 * GB), Demand((0,)), Demand((0,))]
    assert max_min(demands, [10 * GB]) == [1 * GB, 4_500_000_000, 4_500_000_000]


def test_equal_flows_may_be_one_demand() -> None:
    demands = [Demand((0,), flows=3), Demand((0, 1), flows=2)]
    assert max_min(demands, [12 * GB, 2 * GB]) == [10 * GB // 3, 1 * GB]


def test_a_division_rounds_down() -> None:
    assert max_min([Demand((0,))] * 3, [10]) == [3, 3, 3]


def test_in_turn_the_first_has_the_whole_link() -> None:
    demands = [Demand((0,)), Demand((0,)), Demand((1,), cap=3 * GB)]
    assert fifo(demands, [10 * GB, 4 * GB]) == [10 * GB, 0, 3 * GB]


def test_in_turn_one_that_waits_holds_up_those_behind_it() -> None:
    demands = [Demand((0,)), Demand((0, 1)), Demand((1,)), Demand((2,))]
    assert fifo(demands, [10 * GB, 4 * GB, GB]) == [10 * GB, 0, 0, GB]


def test_in_turn_the_slowest_link_of_the_route_counts() -> None:
    assert fifo([Demand((0, 1))], [10 * GB, 4 * GB]) == [4 * GB]


def test_without_flows_there_are_no_rates() -> None:
    assert max_min([], [GB]) == fifo([], [GB]) == []


def random_demands(most_links: int, caps: bool) -> st.SearchStrategy[list[Demand]]:
    routes = st.sets(st.integers(0, most_links - 1), min_size=1, max_size=4).map(lambda links: tuple(sorted(links)))
    limits = st.none() | st.integers(1, 10**6) if caps else st.none()
    return st.lists(st.builds(Demand, routes, limits, st.integers(1, 4)), min_size=1, max_size=24)


LINKS = 8
CAPACITIES = st.lists(st.integers(10**3, 10**7), min_size=LINKS, max_size=LINKS)


@given(random_demands(LINKS, caps=True), CAPACITIES)
def test_no_rate_can_grow_but_at_the_cost_of_one_no_greater(demands: list[Demand], capacities: list[int]) -> None:
    """The definition: each flow is at its cap, or crosses a full link on which none is faster."""
    rates = max_min(demands, capacities)
    for link, capacity in enumerate(capacities):
        crossing = [i for i, each in enumerate(demands) if link in each.route]
        assert sum(rates[i] * demands[i].flows for i in crossing) <= capacity
    for each, rate in zip(demands, rates, strict=True):
        assert rate >= 0
        assert rate == each.cap or any(is_bottleneck(link, rate, demands, rates, capacities) for link in each.route)


def is_bottleneck(
    link: int, rate: int, demands: Sequence[Demand], rates: Sequence[int], capacities: Sequence[int]
) -> bool:
    """Return whether the link is full, except for rounding, and no flow on it is faster."""
    crossing = [i for i, each in enumerate(demands) if link in each.route]
    flows = sum(demands[i].flows for i in crossing)
    spare = capacities[link] - sum(rates[i] * demands[i].flows for i in crossing)
    return spare < flows and all(rates[i] <= rate for i in crossing)


@given(random_demands(LINKS, caps=False), CAPACITIES, st.permutations(range(24)))
def test_the_order_of_flows_does_not_matter(demands: list[Demand], capacities: list[int], order: list[int]) -> None:
    shuffled = [i for i in order if i < len(demands)]
    there = max_min([demands[i] for i in shuffled], capacities)
    here = max_min(demands, capacities)
    assert there == [here[i] for i in shuffled]


@settings(max_examples=40)
@given(random_demands(LINKS, caps=True), CAPACITIES)
def test_rates_are_those_of_progressive_filling_with_exact_numbers(
    demands: list[Demand], capacities: list[int]
) -> None:
    unit = 10**12  # so fine that rounding, up to some units a flow, is far below what is compared
    fine = [Demand(each.route, None if each.cap is None else each.cap * unit, each.flows) for each in demands]
    rates = max_min(fine, [capacity * unit for capacity in capacities])
    exact = progressive_filling(demands, capacities)
    for rate, expected in zip(rates, exact, strict=True):
        assert abs(expected * unit - rate) < 1000


def progressive_filling(demands: Sequence[Demand], capacities: Sequence[int]) -> list[Fraction]:
    """Return the rates by progressive filling: all grow together, in steps to the next limit."""
    rates = [Fraction(0)] * len(demands)
    growing = set(range(len(demands)))
    while growing:
        steps = [Fraction(each.cap) - rates[i] for i, each in enumerate(demands) if i in growing and each.cap]
        for link, capacity in enumerate(capacities):
            flows = sum(demands[i].flows for i in growing if link in demands[i].route)
            if flows:
                steps.append(spare(link, capacity, demands, rates) / flows)
        step = min(steps)
        for i in growing:
            rates[i] += step
        full = {link for link, capacity in enumerate(capacities) if not spare(link, capacity, demands, rates)}
        growing -= {i for i in growing if rates[i] == demands[i].cap or full & set(demands[i].route)}
    return rates


def spare(link: int, capacity: int, demands: Sequence[Demand], rates: Sequence[Fraction]) -> Fraction:
    return capacity - sum(
        (rates[i] * each.flows for i, each in enumerate(demands) if link in each.route), start=Fraction(0)
    )
