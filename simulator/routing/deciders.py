"""The built-in deciders of disaggregated serving: is a prompt computed by the prefill pools, or where it is decoded?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from simulator.scenario import handover


class Prospect(Protocol):
    """What a decider may know of a request, on its arrival, with the replicas that it would go to."""

    @property
    def prompt_tokens(self) -> int: ...
    def cached_tokens(self) -> int:
        """Tokens of the prompt in the prefix cache of that replica which has the most, of those that could serve it
        from beginning to end."""

    def prefill_tokens(self) -> int:
        """Tokens of the unfinished prompts of the prefill replica that has the fewest."""


#: True if the prompt is computed by the prefill pools.
Decider = Callable[[Prospect], bool]


def _long_prompt(settings: handover.LongPrompt) -> Decider:
    limit = settings.uncached_tokens
    return lambda prospect: prospect.prompt_tokens > limit and prospect.prompt_tokens - prospect.cached_tokens() > limit


def _prefill_load(settings: handover.PrefillLoad) -> Decider:
    return lambda prospect: prospect.prefill_tokens() <= settings.max_tokens


_BUILDERS: dict[str, Callable[[Any], Decider]] = {
    "always": lambda settings: lambda prospect: True,
    "long_prompt": _long_prompt,
    "prefill_load": _prefill_load,
}


def build_decider(settings: handover.Decider) -> Decider:
    """The decider that the scenario names."""
    return _BUILDERS[settings.TAG](settings)
