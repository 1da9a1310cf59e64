"""The scheduler of vLLM V0 without chunked prefill: steps of whole prompts before steps of decodes.

Models `vllm/core/scheduler.py` of vLLM 0.2 to 0.5 (`Scheduler._schedule`, `_schedule_default`). A step computes either
prompts or decodes. While the head of the waiting queue fits (the number of sequences, the token budget, its blocks with
the watermark left free), prompts are computed, and no decode advances. Else all decodes advance by a token; if free
blocks do not suffice, the sequence admitted last is preempted and recomputed, from the front of the queue.

Left out: swapping (V0 recomputes requests of one sequence), beam search, LoRA, `max_paddings`, the free block that V0
requires for each decode even if it needs none, and `delay_factor`. V0 ignores a prompt that would leave less than the
watermark of the whole pool; here it is computed once no other sequence runs.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import PrefillFirstScheduler
from simulator.scheduling.building_blocks import admit_prompts, advance_decodes
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View


class PrefillFirstPolicy:
    """Steps of whole prompts first, or else of all decodes, as vLLM V0 schedules them."""

    def __init__(self, settings: PrefillFirstScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._watermark = self.limits(settings).spare_blocks(kv_blocks)

    @staticmethod
    def limits(settings: PrefillFirstScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.max_model_len,
            chunked=False,
            checks_context=True,
            watermark=settings.watermark,
        )

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Schedule waiting prompts if the head of the queue fits, else the decodes."""
        chunks = admit_prompts(view, pool, self._max_num_seqs, self._budget, self._watermark)
        if chunks:
            return Plan(admitted=[seq for seq, _ in chunks], chunks=chunks, paused=True)
        preempted = advance_decodes(view, pool)
        return Plan(preempted) if preempted else STEADY
