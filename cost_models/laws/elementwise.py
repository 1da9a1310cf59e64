"""Memory-bound kernels: norms, RoPE, activations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cost_models.files.fields import Fields
from cost_models.laws.table import Floats
from cost_models.specs.gpu import GpuSpec

#: The part of a single kernel's least time that remains in a CUDA graph, where launches overlap: an estimate, the same
#: as in the hardware files.
GRAPH_SHARE = 0.5


class ElementwiseLaw(NamedTuple):
    """The longer of the memory traffic at `bandwidth` (a share of the peak) and the least time of a kernel.

    `launch_ns` is the least time of a kernel that was measured alone.
    """

    gpu: GpuSpec
    launch_ns: float
    bandwidth: float

    def ns(self, bytes_each: float, count: Floats) -> Floats:
        """Return the ns in a CUDA graph of a kernel that moves `bytes_each` for each of `count` tokens (n,)."""
        return np.maximum(self._traffic_ns(bytes_each, count), self.launch_ns * GRAPH_SHARE)

    def alone_ns(self, bytes_each: float, count: Floats) -> Floats:
        """Return the same with the measured least time: for a kernel launched alone."""
        return np.maximum(self._traffic_ns(bytes_each, count), self.launch_ns)

    def to_json(self) -> dict[str, Any]:
        """Return the law's parameters, with four significant digits."""
        return {"launch_ns": float(f"{self.launch_ns:.4g}"), "bandwidth": float(f"{self.bandwidth:.4g}")}

    @staticmethod
    def from_json(data: Fields, gpu: GpuSpec) -> ElementwiseLaw:
        """Return the law from the result of `to_json`. Raises CostModelError if it is not valid."""
        law = ElementwiseLaw(gpu, data.number("launch_ns", zero=True), data.number("bandwidth"))
        data.finish()
        return law

    def _traffic_ns(self, bytes_each: float, count: Floats) -> Floats:
        time: Floats = count * (bytes_each / (self.gpu.hbm_bandwidth * self.bandwidth / 1e9))
        return time
