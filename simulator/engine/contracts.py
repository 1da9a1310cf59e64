"""Parts of an engine core, and the contracts with its listener and connectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cost_models.shape import CostModel
from cost_models.specs.host import FrontEnd
from simulator.engine.batches.base import Batch
from simulator.scheduling import Plan, Policy, SequenceState

if TYPE_CHECKING:
    from simulator.engine.core import EngineCore


class Listener(Protocol):
    """Is told when requests leave an engine core."""

    def finished(self, core: EngineCore, sequences: Sequence[SequenceState]) -> None:
        """These got their last tokens from one step."""

    def withdrawn(self, core: EngineCore, seq: SequenceState) -> None:
        """This one was withdrawn: it has left the core, and will get no more tokens."""


class Connector(Protocol):
    """Brings KV to an engine core, or takes it away (vLLM: a KV connector)."""

    @property
    def pending(self) -> int:
        """Requests for which something could be done when the next step is formed."""

    @property
    def known_tokens(self) -> int:
        """Tokens known of requests that will join the core, and are not in its batch or at its front end."""

    def serve(self) -> None:
        """Do what can be done, before a step is formed."""

    def scheduled(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """A step of this plan runs from `start_ns` to `end_ns`."""

    def withdraw(self, seq: SequenceState) -> bool:
        """Give up a parked sequence; False if the connector does not know it."""


@dataclass(frozen=True, slots=True)
class CoreParts:
    """The parts of an engine core: its scheduler and batch, and what a step and a request cost."""

    batch: Batch
    policy: Policy
    cost: CostModel
    front_end: FrontEnd
