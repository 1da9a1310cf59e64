"""Resolved settings of a pool, for the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cost_models.shape import CostModel
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.host import NO_FRONT_END, FrontEnd
from simulator.scenario.schema import Pool

if TYPE_CHECKING:
    from simulator.speculation import AcceptanceLaw


class Service(NamedTuple):
    """Resolved settings of a pool, for each of its equal replicas, and the `gpus` of all of them.

    `kv_blocks` are those of a rank. `lockstep`: the data-parallel ranks of a replica step together. For transfers of
    KV, `gpu_spec` has the links, `kv_token_bytes` is the KV of a token in all of the model's `layers` on all GPUs of a
    rank, including copies, and `kv_parts` is the number of tensors of a layer. `acceptance` is the law of accepted
    drafts, if the pool speculates.
    """

    cost: CostModel
    kv_blocks: int
    max_model_len: int
    gpus: int
    front_end: FrontEnd = NO_FRONT_END
    lockstep: bool = False
    gpu_spec: GpuSpec | None = None
    kv_token_bytes: int = 0
    layers: int = 1
    kv_parts: int = 2
    acceptance: AcceptanceLaw | None = None

    def records_stalls(self, pool: Pool) -> bool:
        """Return whether the time that chunks add to decodes is known: not for a pipeline, or ranks that step together.

        A prefill pool has no decodes, so that its stalls are known to be 0.
        """
        return pool.role == "prefill" or not (self.lockstep or pool.pipeline_parallel > 1)
