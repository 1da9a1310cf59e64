"""A pool of replicas in numbers, as the engine takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.shape import CostModel
from cost_models.specs.gpu import GpuSpec
from cost_models.specs.host import NO_FRONT_END, FrontEnd
from simulator.scenario.schema import Pool

if TYPE_CHECKING:
    from simulator.speculation import AcceptanceLaw


@dataclass(frozen=True, slots=True)
class Service:
    """Resolved settings of a pool, in numbers: those of one of its equal replicas, and the `gpus` of all of them.

    `kv_blocks` are those of a rank. `lockstep`: the data-parallel ranks of a replica step together. What follows counts
    where KV is handed over: `gpu_spec` says what links there are, `kv_token_bytes` are those of a token's KV in all of
    the model's `layers` on all GPUs of a rank, copies included, and `kv_parts` the tensors of a layer. `acceptance`
    says what becomes of the drafts of a pool that speculates.
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
        """Whether it is known what chunks add to the steps of decodes: not of a pipeline's stages or of ranks that step
        together. A pool for prompts alone has no decodes that could be stalled."""
        return pool.role == "prefill" or not (self.lockstep or pool.pipeline_parallel > 1)
