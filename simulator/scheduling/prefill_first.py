"""Prompts first, whole and in steps of their own: the scheduler of vLLM V0 without chunked prefill.

Models `vllm/core/scheduler.py` of vLLM 0.2 to 0.5 (`Scheduler._schedule`, `_schedule_default`). A step is either of
prompts or of decodes. While the head of the waiting queue fits (a slot, the token budget, its blocks with the
watermark left free), prompts are computed, and every decode stands still. Else all decodes get a token; where blocks
are short, the sequence admitted last is preempted and recomputed, from the front of the queue.

Left out: swapping (V0 recomputes requests of one sequence), beam search, LoRA, `max_paddings`, the spare block that V0
wants for each decode even if it needs none, and `delay_factor`. A prompt that would leave less than the watermark of
the whole pool is ignored there, and here served once nothing runs.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import PrefillFirstScheduler
from simulator.scheduling.building_blocks import admit_prompts, advance_decodes
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View


class PrefillFirstPolicy:
    """Whole prompts first, or else all decodes, as vLLM V0 schedules them."""

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
        """Waiting prompts, or else the decodes."""
        chunks = admit_prompts(view, pool, self._max_num_seqs, self._budget, self._watermark)
        if chunks:
            return Plan(admitted=[seq for seq, _ in chunks], chunks=chunks, paused=True)
        preempted = advance_decodes(view, pool)
        return Plan(preempted) if preempted else STEADY
