"""The recorder of replicas: when each changed its state."""

from __future__ import annotations

import numpy as np

from simulator.results.columns import ReplicaColumns, ReplicaState


class ReplicaLog:
    """One row a change of a replica's state; see `ReplicaColumns` for the columns."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def write(self, replica: int, state: ReplicaState, since_ns: int) -> None:
        """Write that a replica is in a state from a moment on."""
        self._rows.append((replica, state, since_ns))

    def columns(self) -> ReplicaColumns:
        """Return all rows, by replica and in time."""
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        return ReplicaColumns(*(column.copy() for column in rows[np.argsort(rows[:, 0], kind="stable")].T))
