"""A replica of a deployment: its engine cores, and whether they are open to requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from simulator.engine.clock import Clock
from simulator.engine.core import EngineCore
from simulator.engine.logs.replica_log import ReplicaLog
from simulator.engine.routing_group import RoutingGroup
from simulator.results.columns import ReplicaState


class Replica:
    """The engine cores of one replica: one for each data-parallel rank and each lane of a pipeline.

    `number` counts the replicas of the deployment, pool after pool. Only a replica that is UP gets requests; one that
    is DRAINING goes on with those that it has.
    """

    #: The states that may follow each state.
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
        """Unfinished requests of its cores, those on their way there included."""
        return self._group.unfinished(self.cores)

    def change(self, state: ReplicaState, clock: Clock) -> None:
        """Change the state now.

        Raises:
            ValueError: the state cannot follow the present one, or the replica goes down with unfinished requests.
        """
        if state not in self.FOLLOWING[self.state]:
            raise ValueError(f"replica {self.number}: {state.name} cannot follow {self.state.name}")
        if state is ReplicaState.DOWN and self.unfinished:
            raise ValueError(f"replica {self.number}: cannot go down with {self.unfinished} unfinished requests")
        self.state = state
        self._log.write(self.number, state, clock._now)
        self._group.set_open(self.cores, state is ReplicaState.UP)
