"""How flows divide the links that they cross: max-min fairness, or one after the other. Pure functions.

Rates and capacities are ints in one unit, such as bytes a second. A division rounds down, so that a link is never
given away more than once: choose a unit fine enough for the remainder not to matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Demand:
    """`flows` equal flows over the links of `route` (numbers, each once), of which none is faster than `cap`."""

    route: tuple[int, ...]
    cap: int | None = None
    flows: int = 1


#: From demands, in the order in which they began, and the capacity of each link: the rate of one flow of each demand.
Sharing = Callable[[Sequence[Demand], Sequence[int]], list[int]]


def max_min(demands: Sequence[Demand], capacities: Sequence[int]) -> list[int]:
    """Rates of which none can grow without taking from one that is no greater; by progressive filling.

    All rates grow together; those of the flows over a link stop when it is full, that of a flow when it reaches its
    cap. Bertsekas and Gallager, "Data Networks", 2nd edition, section 6.5.2.
    """
    if len(demands) <= 1:  # the usual case
        return [_alone(each, capacities) for each in demands]
    left, growing, users = _state(demands, capacities)
    rates = [-1] * len(demands)
    # Where growth stops next: links by the equal share of what is left, caps as numbers below 0. A link's share only
    # grows as others' flows stop, so that an entry is a lower bound, put right when it is met.
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
    """A flow has the whole of its links while it is the first of those that are left on each of them, else nothing.

    The first waits on no one, so that something always moves; one that waits for a link also holds up those behind it
    on its other links. Each demand is one flow.
    """
    taken: set[int] = set()
    rates = []
    for each in demands:
        rates.append(_alone(each, capacities) if taken.isdisjoint(each.route) else 0)
        taken.update(each.route)
    return rates


def _alone(demand: Demand, capacities: Sequence[int]) -> int:
    """The rate of flows that meet no others."""
    rate = min([capacities[link] for link in demand.route]) // demand.flows
    return rate if demand.cap is None else min(rate, demand.cap)


def _state(
    demands: Sequence[Demand], capacities: Sequence[int]
) -> tuple[dict[int, int], dict[int, int], dict[int, list[int]]]:
    """For each link in use: what is left of it, how many of its flows still grow, and the indices of its demands."""
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


#: What a scenario's `links.sharing` may name.
SHARING: dict[str, Sharing] = {"max_min": max_min, "fifo": fifo}
