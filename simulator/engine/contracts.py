"""Parts of an engine core, and the interfaces of its listener and connectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cost_models.shape import CostModel
from cost_models.specs.host import FrontEnd
from simulator.engine.batches.interface import Batch
from simulator.scheduling import Plan, Policy, SequenceState

if TYPE_CHECKING:
    from simulator.engine.core import EngineCore


class Listener(Protocol):
    """Interface that is notified of the requests that leave an engine core, and of loads that fall."""

    def finished(self, core: EngineCore, sequences: Sequence[SequenceState]) -> None:
        """Handle sequences whose last tokens one step has delivered."""

    def withdrawn(self, core: EngineCore, seq: SequenceState) -> None:
        """Handle a withdrawn sequence, which has left the core and gets no more tokens."""

    def load_fell(self, core: EngineCore) -> None:
        """Handle that waiting requests or known tokens of a core are fewer, though no request has left it."""


class Connector(Protocol):
    """Transfer of KV to or from an engine core (vLLM: a KV connector)."""

    @property
    def pending(self) -> int:
        """Number of requests that `serve` could handle before the next step is formed."""

    @property
    def sees_steps(self) -> bool:
        """Whether the connector needs a call of `scheduled` for each step, after any of which `pending` may be more.
        Another one calls `wake` of the core when `pending` grows."""

    @property
    def known_tokens(self) -> int:
        """Known tokens of requests that will join the core, and are not in its batch or at its front end."""

    def serve(self) -> None:
        """Handle pending requests, before a step is formed."""

    def scheduled(self, plan: Plan, start_ns: int, end_ns: int) -> None:
        """Handle a formed step of this plan, which runs from `start_ns` to `end_ns`."""

    def withdraw(self, seq: SequenceState) -> bool:
        """Withdraw a parked sequence; False if the connector has not parked it."""


class CoreParts(NamedTuple):
    """The parts of an engine core: batch, policy, and the costs of a step and of a request at the front end."""

    batch: Batch
    policy: Policy
    cost: CostModel
    front_end: FrontEnd
