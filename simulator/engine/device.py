"""Devices, which run formed steps: start and end of a step after earlier ones. Times are in ns.

`EngineCore` has the code of `Device.place` inline, since it runs in every step.
"""

from __future__ import annotations

from cost_models.shape import BatchShape, StagedCost, StepCost


class Device:
    """A device that runs one step after the other, each after its preparation; the CPU prepares one at a time."""

    __slots__ = ("free_ns", "prepared_ns")

    def __init__(self) -> None:
        self.free_ns = 0  # end of the last step
        self.prepared_ns = 0  # end of the CPU's preparation of the last step

    def place(self, now_ns: int, cost: StepCost) -> tuple[int, int]:
        """Add a step that is formed at `now_ns`; return its start and its end."""
        self.prepared_ns = max(self.prepared_ns, now_ns) + cost.host_ns
        start_ns = max(self.free_ns, self.prepared_ns)
        self.free_ns = start_ns + cost.device_ns
        return start_ns, self.free_ns


class Pipeline:
    """The stages of a pipeline, which run steps in the order in which they are formed.

    A stage starts a step when the previous stage has sent it and the previous step has ended. The order of steps does
    not change, so that all of their times are known when they are formed. Sends do not occupy a stage.
    """

    def __init__(self, cost: StagedCost) -> None:
        self._cost = cost
        self._free_ns = [0] * cost.stages
        self._prepared_ns = 0

    def place(self, now_ns: int, shape: BatchShape) -> tuple[int, int]:
        """Add a step that is formed at `now_ns`; return its start in the first stage, and its end in the last."""
        stages_ns, sends_ns, host_ns = self._cost.stage_times(shape)
        self._prepared_ns = max(self._prepared_ns, now_ns) + host_ns
        free = self._free_ns
        start_ns = max(free[0], self._prepared_ns)
        end_ns = free[0] = start_ns + stages_ns[0]
        for stage, send_ns in enumerate(sends_ns, start=1):
            end_ns = free[stage] = max(end_ns + send_ns, free[stage]) + stages_ns[stage]
        return start_ns, end_ns
