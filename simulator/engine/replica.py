"""A replica of a deployment: its engine cores and its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore
from simulator.engine.logs.replica_log import ReplicaLog
from simulator.engine.routing_group import RoutingGroup
from simulator.results.columns import ReplicaState


class Replica:
    """The engine cores of one replica: one for each data-parallel rank, and for each batch in flight of a pipeline.

    `number` counts the replicas of the deployment, pool after pool. Only a replica in state UP gets requests; one in
    state DRAINING completes those that it has.
    """

    #: Allowed next states of each state.
    FOLLOWING: ClassVar[dict[ReplicaState, tuple[ReplicaState, ...]]] = {
        ReplicaState.DOWN: (ReplicaState.STARTING,),
        ReplicaState.STARTING: (ReplicaState.UP, ReplicaState.DOWN),
        ReplicaState.UP: (ReplicaState.DRAINING, ReplicaState.DOWN),
        ReplicaState.DRAINING: (ReplicaState.UP, ReplicaState.DOWN),
    }

    def __init__(self, number: int, cores: Sequence[EngineCore], group: RoutingGroup, log: ReplicaLog) -> None:
        self.number = number
        self.cores = tuple(cores)
        self.state = ReplicaState.UP
        self._group, self._log = group, log
        log.write(number, ReplicaState.UP, 0)

    @property
    def unfinished(self) -> int:
        """Number of unfinished requests of its cores, including those that a transfer will bring."""
        return self._group.unfinished(self.cores)

    def change(self, state: ReplicaState, clock: Clock) -> None:
        """Change the state now.

        Raises:
            ValueError: the state cannot follow the current one, or the replica goes down with unfinished requests.
        """
        if state not in self.FOLLOWING[self.state]:
            raise ValueError(f"replica {self.number}: {state.name} cannot follow {self.state.name}")
        if state is ReplicaState.DOWN and self.unfinished:
            raise ValueError(f"replica {self.number}: cannot go down with {self.unfinished} unfinished requests")
        self.state = state
        self._log.write(self.number, state, clock._now)
        self._group.set_open(self.cores, state is ReplicaState.UP)
