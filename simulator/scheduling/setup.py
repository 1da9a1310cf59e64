"""Parts and settings of a batch policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from simulator.scheduling.speculation import Speculation

#: A number of tokens that stands for no limit.
NO_CAP = 2**62


class PolicySetup(NamedTuple):
    """Settings of a policy, usable KV blocks of its engine core, context limit in tokens, and speculation.

    `passes` returns the number of steps of the data-parallel group since it last had no work.
    """

    settings: Any
    kv_blocks: int
    max_model_len: int = NO_CAP
    speculation: Speculation | None = None
    passes: Callable[[], int] | None = None
