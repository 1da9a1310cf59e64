"""The built-in deciders of disaggregated serving: a prompt is computed by a prefill pool, or where it is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from simulator.scenario import handover


class Prospect(Protocol):
    """Data of a request, and of the load, that a decider may use on arrival."""

    @property
    def prompt_tokens(self) -> int: ...
    def cached_tokens(self) -> int:
        """Return the most prompt tokens in the prefix cache of any engine core that could serve the whole request."""

    def prefill_tokens(self) -> int:
        """Return the tokens of unfinished prompts on the prefill core with the fewest."""


#: Returns whether a prefill pool computes the prompt.
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
    """Build the decider of the scenario's settings."""
    return _BUILDERS[settings.TAG](settings)
