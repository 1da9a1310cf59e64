"""The all-to-all of expert parallelism: tokens are sent to the GPUs of their experts (dispatch), results back
(combine)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cost_models.errors import CostModelError, unknown
from cost_models.files.fields import Fields
from cost_models.laws.table import Table
from cost_models.roofline.operands import Floats
from cost_models.specs.dtypes import ACTIVATION_BYTES
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
#: The axes of the table of a phase.
AXES = ("gpus", "bytes")
#: Between knots of bytes time is linear: four knots an octave, from 1 KiB to 16 GiB.
_KNOTS = np.array([2.0 ** (step / 4) for step in range(4 * 10, 4 * 34 + 1)])


class AllToAllLaw(NamedTuple):
    """Time = (launch + bytes sent to other GPUs / NVLink bandwidth) x v(GPUs, bytes), for each phase.

    `launch_ns` is the time of the shortest measured call; `above` is v. `copy_bytes` are added for each copy of a
    token, since handling a copy takes time whatever its size.
    """

    gpu: GpuSpec
    copy_bytes: float
    launch_ns: Mapping[str, float]
    above: Mapping[str, Table]

    def ns(self, gpus: int, tokens: Floats, hidden: int, top_k: int, phase: str) -> Floats:
        """Return the ns of a `phase` (dispatch or combine) for `tokens` >= 1 of each of `gpus`; shape (n,).

        Raises CostModelError for more GPUs than were measured, and for an unknown phase.
        """
        copies = remote_copies(gpus, tokens, top_k)
        return self.copies_ns(gpus, copies, copies * float(hidden * ACTIVATION_BYTES), phase)

    def copies_ns(self, gpus: int, copies: Floats, size: Floats, phase: str) -> Floats:
        """Return the time in which each of `gpus` sends `copies` of tokens, `size` bytes in all, to the others."""
        if phase not in self.above:
            raise unknown("phase of an all-to-all", phase, self.above)
        known = self.above[phase].knots[0][-1]
        if gpus > known:
            raise CostModelError(
                f"the all-to-all of {self.gpu.name} is known for up to {known:g} GPUs, not for the {gpus} that share "
                "experts (tensor_parallel x data_parallel)"
            )
        if gpus == 1:
            return np.zeros(len(size))
        link = self.gpu.nvlink_bandwidth / _SECOND
        base = self.launch_ns[phase] + _KNOTS / link
        times = np.maximum.accumulate(base * self.above[phase].at(np.full(len(_KNOTS), float(gpus)), _KNOTS))
        slope = (times[-1] - times[-2]) / (_KNOTS[-1] - _KNOTS[-2])
        counted = size + copies * self.copy_bytes
        between = np.interp(counted, _KNOTS, times) + np.maximum(0.0, counted - _KNOTS[-1]) * slope
        bounded: Floats = np.maximum(between, size / link)
        return bounded

    def outside(self, gpus: int, tokens: float, hidden: int, top_k: int, phase: str) -> list[str]:
        """Return the values outside the measured ranges, as texts for a warning."""
        copies = float(remote_copies(gpus, np.array([tokens]), top_k)[0])
        return self.above[phase].outside(gpus=gpus, bytes=copies * (hidden * ACTIVATION_BYTES + self.copy_bytes))

    def to_json(self) -> dict[str, Any]:
        """Return the law as plain lists, numbers and texts."""
        phases = {
            phase: {"launch_ns": round(self.launch_ns[phase]), "above": table.to_json()}
            for phase, table in self.above.items()
        }
        return {"copy_bytes": self.copy_bytes, "phases": phases}

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec) -> AllToAllLaw:
        """Return the law from the result of `to_json`. Raises CostModelError if it is not valid."""
        phases = data.required_section("phases")
        launch_ns, above = {}, {}
        for phase in phases.names():
            entry = phases.required_section(phase)
            launch_ns[phase] = entry.number("launch_ns", zero=True)
            above[phase] = Table.from_json(entry.required_section("above"), AXES)
            entry.finish()
        law = AllToAllLaw(gpu, data.number("copy_bytes", zero=True), launch_ns, above)
        data.finish()
        return law


def remote_copies(gpus: int, tokens: Floats, top_k: int) -> Floats:
    """Return the copies of its `tokens` that each GPU sends: one to each other GPU that has one of the token's experts.

    With `top_k` independent draws, a GPU is chosen with probability 1 - (1 - 1 / gpus)^top_k (DeepEP sends no more
    copies).
    """
    copies: Floats = tokens * ((gpus - 1) * (1 - math.pow(1 - 1 / gpus, top_k)))
    return copies
