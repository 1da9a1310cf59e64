"""Loads of engine cores for routers, and the search for the least of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Protocol, TypeVar

#: Up to this number of loads each choice compares all of them, which takes no longer than a heap.
_FEW = 16


class Load(Protocol):
    """The load of one engine core that is open to requests."""

    @property
    def number(self) -> int:
        """Number of the engine core, the same for the whole run."""

    @property
    def requests(self) -> int:
        """Number of unfinished requests."""

    @property
    def waiting(self) -> int:
        """Number of unfinished requests that are not running."""

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and delivered output tokens of the unfinished requests."""


L = TypeVar("L", bound=Load)


class OpenLoads(list[L]):
    """Loads of the open engine cores, in order of their numbers; the list is replaced when a core opens or closes.

    After a count of a load has fallen, `fell` must be called before the next choice. A count may rise without a call.
    """

    __slots__ = ("followers",)

    def __init__(self, loads: Sequence[L] = ()) -> None:
        super().__init__(loads)
        self.followers: list[set[L]] = []  # each gets the loads that fell

    def fell(self, load: L) -> None:
        """Note that a count of a load has fallen."""
        for fallen in self.followers:
            fallen.add(load)


class Least:
    """Search for the load with the smallest `key`, the first of equals, in O(log n) among the same `OpenLoads`.

    A heap has a lower bound of each key. The key is computed again when its bound is the least of all, or when a count
    of the load fell. `key` must not fall when a count rises.
    """

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self._key = key
        self._loads: Sequence[Load] = ()
        self._bounds: dict[int, Any] = {}  # by number of the core
        self._heap: list[tuple[Any, int, Any]] = []  # (bound, number, load); old if the bound has changed
        self._fallen: set[Any] = set()

    def of(self, loads: Sequence[L]) -> L:
        """Return the first of the loads with the smallest key; `loads` has at least one."""
        key = self._key
        if loads is not self._loads:
            if len(loads) <= _FEW or not isinstance(loads, OpenLoads):
                return min(loads, key=key)
            self._follow(loads)
        elif self._fallen:
            self._lower()
        bounds = self._bounds
        heap: list[tuple[Any, int, L]] = self._heap
        while True:
            bound, number, load = heap[0]
            if bound != bounds[number]:
                heappop(heap)
                continue
            now = key(load)
            if now == bound:
                return load
            bounds[number] = now
            heapreplace(heap, (now, number, load))

    def _follow(self, loads: OpenLoads[Any]) -> None:
        self._loads, self._fallen = loads, set()
        loads.followers.append(self._fallen)
        self._bounds = {load.number: self._key(load) for load in loads}
        self._build()

    def _build(self) -> None:
        self._heap = [(self._bounds[load.number], load.number, load) for load in self._loads]
        heapify(self._heap)

    def _lower(self) -> None:
        """Lower the bounds of the loads that fell; closed cores have no bound."""
        key, heap, bounds = self._key, self._heap, self._bounds
        for load in self._fallen:
            now, number = key(load), load.number
            if now < bounds.get(number, now):
                bounds[number] = now
                heappush(heap, (now, number, load))
        self._fallen.clear()
        if len(heap) > 4 * len(bounds):
            self._build()
