"""Iteration-level scheduling, as in Orca (Yu et al., OSDI '22, Algorithm 1).

Each step ("iteration") has every running sequence and, first come, first served, as many new ones as the batch size
(`max_bs`) and memory allow. A new one computes its whole prompt beside the decodes. Its memory, for the prompt and all
of `max_tokens`, is reserved at admission (`n_rsrv` <= `n_slots`), so that no sequence is ever preempted. If a waiting
sequence does not fit, none behind it is admitted.

Left out: pipelined batches (`n_workers` above 1) and selective batching, a matter of kernels. Slots are blocks here: a
reservation is rounded up to `memory.block_size`; a size of 1 is Orca's slot of one token.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import OrcaScheduler
from simulator.scheduling.building_blocks import admit_prompts
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View


class OrcaPolicy:
    """Steps of all decodes and whole prompts together. The pool makes the reservation (`Limits.reserves`)."""

    def __init__(self, settings: OrcaScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens

    @staticmethod
    def limits(settings: OrcaScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.max_model_len,
            chunked=False,
            reserves=settings.RESERVES,
        )

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Schedule all decodes, whose memory was reserved at admission, and waiting prompts beside them."""
        chunks = admit_prompts(view, pool, self._max_num_seqs, self._budget)
        return Plan(admitted=[seq for seq, _ in chunks], chunks=chunks) if chunks else STEADY
