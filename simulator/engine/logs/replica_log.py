"""The log of replicas: the times of their changes of state."""

from __future__ import annotations

import numpy as np

from simulator.results.columns import ReplicaColumns, ReplicaState


class ReplicaLog:
    """Log with one row for each change of a replica's state; its columns are those of `ReplicaColumns`."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def write(self, replica: int, state: ReplicaState, since_ns: int) -> None:
        """Log the state of a replica from `since_ns` on."""
        self._rows.append((replica, state, since_ns))

    def columns(self) -> ReplicaColumns:
        """Return all rows, by replica and time."""
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        return ReplicaColumns(*(column.copy() for column in rows[np.argsort(rows[:, 0], kind="stable")].T))
