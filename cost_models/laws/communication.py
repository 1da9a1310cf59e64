"""Messages between GPUs: all-reduce, and copies from one GPU to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.laws.curve import Curve
from cost_models.laws.table import Floats
from cost_models.specs.gpu import GpuSpec

#: vLLM's custom kernel is used for smaller messages, NCCL for messages of this size or more (custom_all_reduce.py in
#: vllm/distributed/device_communicators: `max_size`).
NCCL_BYTES = 8 * 2**20


#: Most digits of the number of GPUs in a file.
_DIGITS = 6


class AllReduceLaw(NamedTuple):
    """Times of an all-reduce for each measured number of GPUs."""

    gpu: GpuSpec
    curves: Mapping[int, Curve]

    def ns(self, gpus: int, size_bytes: Floats) -> Floats:
        """Return the ns for messages of `size_bytes` (n,), on the smallest measured group of at least `gpus`.

        It is at least the time to send the message once over NVLink, which is enough for a switch that adds (NVLink
        SHARP). Raises CostModelError for more GPUs than were measured.
        """
        time = self._curve(gpus).ns(size_bytes)
        if not self.gpu.nvlink_bandwidth:
            return time
        return np.maximum(time, size_bytes * (1e9 / self.gpu.nvlink_bandwidth))

    def outside(self, gpus: int, size_bytes: float) -> list[str]:
        """Return the values outside the measured ranges, as texts for a warning."""
        known = [] if gpus in self.curves else [f"gpus {gpus} (calibrated {', '.join(map(str, sorted(self.curves)))})"]
        return known + self._curve(gpus).outside("bytes", size_bytes)

    def to_json(self) -> dict[str, Any]:
        """The law's parameters."""
        return {"gpus": {str(gpus): self.curves[gpus].to_json() for gpus in sorted(self.curves)}}

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec) -> AllReduceLaw:
        """Return the law from the result of `to_json`. Raises CostModelError if it is not valid."""
        groups = data.required_section("gpus")
        curves = {}
        for gpus in groups.names():
            if not gpus.isdecimal() or len(gpus) > _DIGITS:
                raise groups.error(gpus, "expected a number of GPUs")
            curves[int(gpus)] = Curve.from_json(groups.required_section(gpus))
        data.finish()
        return AllReduceLaw(gpu, curves)

    def _curve(self, gpus: int) -> Curve:
        fitting = [size for size in self.curves if size >= gpus]
        if not fitting:
            sizes = ", ".join(str(size) for size in sorted(self.curves))
            raise CostModelError(
                f"tensor_parallel {gpus}: the all-reduce of {self.gpu.name} was measured on {sizes} GPUs only"
            )
        return self.curves[min(fitting)]


class P2pLaw(NamedTuple):
    """Time of a copy from one GPU to another over one kind of link."""

    curve: Curve

    def ns(self, size_bytes: Floats) -> Floats:
        """Return the ns for copies of `size_bytes` (n,)."""
        return self.curve.ns(size_bytes)

    def outside(self, size_bytes: float) -> list[str]:
        """Return the size as a text for a warning if it is outside the measured range."""
        return self.curve.outside("bytes", size_bytes)

    def to_json(self) -> dict[str, Any]:
        """The law's parameters."""
        return self.curve.to_json()

    @staticmethod
    def from_json(data: Fields) -> P2pLaw:
        """Return the law from the result of `to_json`. Raises CostModelError if it is not valid."""
        return P2pLaw(Curve.from_json(data))
