"""Schedulers of DistServe's prefill and decode instances (Zhong et al., OSDI '24), first come, first served.

Models `distserve/context_stage_scheduler.py` and `distserve/decoding_stage_scheduler.py` of
github.com/LLMServe/DistServe. A prefill instance computes batches of whole prompts, limited by a number of requests, a
number of tokens (the L_m of the paper, which saturates a GPU) and the free blocks; prompts that are computed but not
yet fetched hold theirs. A decode instance computes one token of each sequence in each step. After a preemption or a
failed transfer, it computes the lost tokens like a prompt.

In a prefill pool a sequence ends with its first token, and in a decode pool it joins with its KV in memory, so that one
rule covers both. Left out: swapping (the sequence admitted last is recomputed instead), pipelined batches (several
stages), and the share of blocks that accepted requests of DistServe may hold while they wait to be scheduled.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import DistServeScheduler
from simulator.scheduling.building_blocks import admit_prompts, advance_decodes
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View


class DistServePolicy:
    """Steps of whole prompts, or else of all decodes, as DistServe's engines schedule them."""

    def __init__(self, settings: DistServeScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens

    @staticmethod
    def limits(settings: DistServeScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(settings.max_num_seqs, settings.max_num_batched_tokens, settings.max_model_len, chunked=False)

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Schedule a batch of prompts if one can be admitted, else the decodes."""
        chunks = admit_prompts(view, pool, self._max_num_seqs, self._budget)
        if chunks:
            return Plan(admitted=[seq for seq, _ in chunks], chunks=chunks, paused=True)
        preempted = advance_decodes(view, pool)
        return Plan(preempted) if preempted else STEADY
