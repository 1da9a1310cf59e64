"""Parts and settings of a batch policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.scheduling.speculation import Speculation

#: A cap that never binds.
NO_CAP = 2**62


@dataclass(frozen=True, slots=True)
class PolicySetup:
    """The settings of a policy, the usable KV blocks of its engine core, and where it matters the context limit in
    tokens and speculation.

    `passes` counts the steps of the engine cores that step together with this one, since they last had no work.
    """

    settings: Any
    kv_blocks: int
    max_model_len: int = NO_CAP
    speculation: Speculation | None = None
    passes: Callable[[], int] | None = None
