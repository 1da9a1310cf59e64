"""Data of a request on arrival, for deciders."""

from __future__ import annotations

from simulator.engine.routing_group import RoutingGroup


class RequestProspect:
    """A `routing.Prospect` of one request."""

    def __init__(self, index: int, local: RoutingGroup, prefill: RoutingGroup) -> None:
        self._index = index
        self._local = local
        self._prefill = prefill
        self.prompt_tokens = local.prompt_tokens(index)

    def cached_tokens(self) -> int:
        return self._local.cached_tokens(self._index)

    def prefill_tokens(self) -> int:
        return self._prefill.fewest_tokens()
