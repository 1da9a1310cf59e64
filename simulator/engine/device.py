"""Devices, which run formed steps: when a step starts and ends, given the steps before. Times are handed in.

An `EngineCore` with a device of its own does what `Device` does in line, since it is on the path of every step.
"""

from __future__ import annotations

from cost_models.shape import BatchShape, StagedCost, StepCost


class Device:
    """Runs one step after the other, each when the CPU has prepared it; the CPU prepares one at a time."""

    __slots__ = ("free_ns", "prepared_ns")

    def __init__(self) -> None:
        self.free_ns = 0  # when the last step ends
        self.prepared_ns = 0  # when the CPU has prepared the last step

    def place(self, now_ns: int, cost: StepCost) -> tuple[int, int]:
        """Place a step that is formed now; return its start and its end."""
        self.prepared_ns = max(self.prepared_ns, now_ns) + cost.host_ns
        start_ns = max(self.free_ns, self.prepared_ns)
        self.free_ns = start_ns + cost.device_ns
        return start_ns, self.free_ns


class Pipeline:
    """The stages of a pipeline, which steps pass in the order in which they are formed.

    A step enters a stage when the one before has sent it, and the step before it has left. None overtakes another, so
    that its whole way is known when it is formed. Sends do not occupy a stage.
    """

    def __init__(self, cost: StagedCost) -> None:
        self._cost = cost
        self._free_ns = [0] * cost.stages
        self._prepared_ns = 0

    def place(self, now_ns: int, shape: BatchShape) -> tuple[int, int]:
        """Place a step that is formed now; return its start in the first stage, and its end in the last."""
        stages_ns, sends_ns, host_ns = self._cost.stage_times(shape)
        self._prepared_ns = max(self._prepared_ns, now_ns) + host_ns
        free = self._free_ns
        start_ns = max(free[0], self._prepared_ns)
        end_ns = free[0] = start_ns + stages_ns[0]
        for stage, send_ns in enumerate(sends_ns, start=1):
            end_ns = free[stage] = max(end_ns + send_ns, free[stage]) + stages_ns[stage]
        return start_ns, end_ns
