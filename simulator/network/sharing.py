"""Rates of flows that share links: max-min fairness, or one flow after the other. Pure functions.

Rates and capacities are ints in one unit, such as bytes a second. A division rounds down, so that the rates over a link
never exceed its capacity: choose a unit small enough for the remainder not to matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Demand:
    """Equal flows, `flows` in number, over the links of `route` (their numbers, each once), each at most `cap` fast."""

    route: tuple[int, ...]
    cap: int | None = None
    flows: int = 1


#: Function of demands, in the order in which they began, and of the capacity of each link. It returns, for each demand,
#: the rate of one of its flows.
Sharing = Callable[[Sequence[Demand], Sequence[int]], list[int]]


def max_min(demands: Sequence[Demand], capacities: Sequence[int]) -> list[int]:
    """Return the max-min fair rates: none can grow without making an equal or smaller one smaller.

    Progressive filling: all rates grow together; a flow stops to grow when one of its links is full, or when it reaches
    its cap. Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2.
    """
    if len(demands) <= 1:  # the usual case
        return [_unshared_rate(each, capacities) for each in demands]
    left, growing, users = _state(demands, capacities)
    rates = [-1] * len(demands)
    # Heap of (rate at which growth stops, its cause): a link, at an equal share of its remaining capacity, or the cap
    # of demand i, as ~i. A link's share only grows when flows stop, so that an entry is a lower bound: it is compared
    # with the present share when it is popped.
    stops = [(left[link] // growing[link], link) for link in left]
    stops += [(each.cap, ~index) for index, each in enumerate(demands) if each.cap is not None]
    heapq.heapify(stops)
    while stops:
        rate, place = heapq.heappop(stops)
        if place >= 0:
            if not growing[place]:
                continue
            share = left[place] // growing[place]
            if share > rate:
                heapq.heappush(stops, (share, place))
                continue
        for index in users[place] if place >= 0 else (~place,):
            if rates[index] < 0:
                rates[index] = rate
                each = demands[index]
                for link in each.route:
                    left[link] -= rate * each.flows
                    growing[link] -= each.flows
    return rates


def fifo(demands: Sequence[Demand], capacities: Sequence[int]) -> list[int]:
    """Return rates by which a flow has its links to itself while it is the oldest flow on each of them, else 0.

    The oldest of all flows never waits. A flow that waits for one of its links also blocks younger flows on its other
    links. Each demand is one flow.
    """
    taken: set[int] = set()
    rates = []
    for each in demands:
        rates.append(_unshared_rate(each, capacities) if taken.isdisjoint(each.route) else 0)
        taken.update(each.route)
    return rates


def _unshared_rate(demand: Demand, capacities: Sequence[int]) -> int:
    """Return the rate of each flow of `demand` if there are no other flows."""
    rate = min([capacities[link] for link in demand.route]) // demand.flows
    return rate if demand.cap is None else min(rate, demand.cap)


def _state(
    demands: Sequence[Demand], capacities: Sequence[int]
) -> tuple[dict[int, int], dict[int, int], dict[int, list[int]]]:
    """Return, for each link in use, its remaining capacity, the number of its flows that still grow, and the indices of
    its demands."""
    left: dict[int, int] = {}
    growing: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for index, each in enumerate(demands):
        for link in each.route:
            if link in left:
                growing[link] += each.flows
                users[link].append(index)
            else:
                left[link], growing[link], users[link] = capacities[link], each.flows, [index]
    return left, growing, users


#: The choices of a scenario's `links.sharing`.
SHARING: dict[str, Sharing] = {"max_min": max_min, "fifo": fifo}
