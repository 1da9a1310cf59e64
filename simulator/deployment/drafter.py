"""The drafter of a pool in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cost_models import DraftHead, GpuSpec, ModelSpec

#: The share of a GPU's memory for the engine: vLLM's default.
UTILIZATION = 0.9


class Drafter(NamedTuple):
    """Drafter of a pool: a head of the target, a draft model, or (both None) neither.

    It runs on `tensor_parallel` GPUs. `gpus` is the number of GPUs of its own for each replica, 0 if it runs on the
    target's; `own_blocks` is the number of the pool's KV blocks that fit on them (None: no limit). `weight_bytes` and
    `token_bytes` (KV of a token) are its bytes on each of the target's GPUs that it uses.
    """

    head: DraftHead | None = None
    model: ModelSpec | None = None
    gpu: GpuSpec | None = None
    tensor_parallel: int = 1
    gpus: int = 0
    own_blocks: int | None = None
    weight_bytes: int = 0
    token_bytes: int = 0


NO_DRAFTER = Drafter()
