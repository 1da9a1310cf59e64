"""The heads of Medusa as a proposer of drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.drafting.drafters import NO_LAUNCH, DrafterPlace, Launch
from cost_models.drafting.heads import medusa_matrices
from cost_models.kernels.calibrated import kernels_of
from cost_models.roofline.bound import head_bound_ns
from cost_models.roofline.operands import Floats
from cost_models.roofline.operators import LM_HEAD_TYPE
from cost_models.shape import BatchShape
from cost_models.specs.dtypes import ACTIVATION_BYTES
from cost_models.specs.model import ModelSpec


class MedusaProposer:
    """Medusa's heads, all in one pass over the last hidden state of each sequence; no KV, no time for prompts.

    The logits of all heads are always computed. The choice of the tree's drafts is part of the launch.
    """

    __slots__ = ("_bounds", "_launch", "_table", "outside")

    def __init__(self, target: ModelSpec, heads: int, place: DrafterPlace, launch: Launch = NO_LAUNCH) -> None:
        rows = np.arange(place.limits.max_num_seqs + 1, dtype=float)
        self._launch = launch
        self._table: list[int] = np.ceil(_medusa_ns(target, heads, place, rows)).astype(np.int64).tolist()
        matrices = medusa_matrices(target, place.placement.tensor_parallel)
        self._bounds = head_bound_ns(place.gpu, heads * sum(matrix.weights for matrix in matrices))
        #: See `Proposer`. The heads' matrices are those of an LM head, and one of the hidden size.
        self.outside: Sequence[str] = ()

    def draft_ns(self, shape: BatchShape) -> int:
        """Return the time of proposing after the step `shape`, in ns. At most the scheduler's limit of sequences
        sample."""
        if not (shape.proposed and shape.sampled):
            return 0
        return max(self._table[shape.sampled], self._launch.ns(shape.sampled))

    def lockstep_ns(self, shapes: Sequence[BatchShape]) -> int:
        """Return the time of proposing after a step of all data-parallel ranks, in ns."""
        return max((self.draft_ns(shape) for shape in shapes), default=0)

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of proposing on this hardware, in ns."""
        if not (shape.proposed and shape.sampled):
            return 0
        memory_ns, row_ns = self._bounds
        return int(max(memory_ns, shape.sampled * row_ns))


def _medusa_ns(target: ModelSpec, heads: int, place: DrafterPlace, rows: Floats) -> Floats:
    """Return the ns of all heads for each number of rows."""
    kernels = kernels_of(place.gpu, place.sources.calibration)
    stream = target.hidden * ACTIVATION_BYTES
    time = kernels.elementwise_ns(3 * stream, rows)
    for matrix in medusa_matrices(target, place.placement.tensor_parallel):
        time = time + kernels.matrix_ns(LM_HEAD_TYPE, matrix.rows, matrix.columns, rows)
    if place.placement.tensor_parallel > 1:
        time = time + kernels.all_reduce_ns(place.placement.tensor_parallel, target.vocab * ACTIVATION_BYTES * rows)
    return np.where(rows > 0, place.sources.host.kernel_scale * heads * time, 0.0)
