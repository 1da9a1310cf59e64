"""The two kinds of instances of DistServe (Zhong et al., OSDI '24), each first come, first served.

Models `distserve/context_stage_scheduler.py` and `distserve/decoding_stage_scheduler.py` of
github.com/LLMServe/DistServe. A prefill instance computes batches of whole prompts: as many as fit a number of
requests, a number of tokens (the L_m of the paper, from which on a GPU is saturated) and the blocks, which count those
of prompts that were computed and not yet fetched. A decode instance gives each of its sequences a token a step. What
must be computed there, after a preemption or a transfer that failed, is computed like a prompt.

In a prefill pool a sequence ends with its first token, and in a decode pool it joins with its memory in place, so that
one rule serves both. Left out: swapping (the sequence admitted last is recomputed instead), batches in a pipeline
(several stages), and the share of blocks that DistServe lets accepted requests hold while they wait for a place.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import DistServeScheduler
from simulator.scheduling.building_blocks import admit_prompts, advance_decodes
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View


class DistServePolicy:
    """Whole prompts, or else all decodes, as DistServe's engines schedule them."""

    def __init__(self, settings: DistServeScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens

    @staticmethod
    def limits(settings: DistServeScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.max_model_len, chunked=False)

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """A batch of prompts, or else the decodes."""
        chunks = admit_prompts(view, pool, self._max_num_seqs, self._budget)
        if chunks:
            return Plan(admitted=[seq for seq, _ in chunks], chunks=chunks, paused=True)
        preempted = advance_decodes(view, pool)
        return Plan(preempted) if preempted else STEADY
