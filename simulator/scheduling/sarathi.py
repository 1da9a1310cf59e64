"""Stall-free batches of chunked prompts beside decodes: Sarathi-Serve (Agrawal et al., OSDI '24, Algorithm 3).

A step has a token budget. Every running decode is in it; then prompts that are under way take the next chunk, oldest
first; then waiting ones come in, head first, while budget is left. A prompt gets all of its blocks at admission, with
a watermark left free (`sarathi/core/scheduler/sarathi_scheduler.py`, block manager). Where decodes lack blocks, the
sequence admitted last is preempted and recomputed, from the front of the queue; that step admits no request, while
Sarathi-Serve looks at the queue all the same.

Two settings take one half of it away (Table 4 of the paper). Without chunks ("hybrid-batching-only") a prompt is
computed in one step beside the decodes, which then do not count against the budget. With `batching: alternating`
("chunked-prefills-only") steps are of chunks, in which decodes stand still, or of decodes, in turn while there are
both: without turns a stream of chunks would stall decodes as whole prompts do, and the paper measures a quarter of
their tail latency or less. The budget is then one of chunks alone. The paper does not spell the turns out: they were
chosen with Table 4 in sight, which is no blind check of that half.

Left out: pipeline stages, and chunk sizes that grow along a prompt (`enable_dynamic_chunking_schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.memory import BlockPool
from simulator.scenario.schedulers import SarathiScheduler
from simulator.scheduling.building_blocks import Chunks, admit_prompts, advance_decodes, count_decodes
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View
from simulator.scheduling.sequence import SequenceState


class SarathiPolicy:
    """The policy of Sarathi-Serve. All that it keeps from call to call is whose turn it is."""

    def __init__(self, settings: SarathiScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._chunked = settings.chunked
        self._alternates = settings.batching == "alternating"
        self._watermark = self.limits(settings).spare_blocks(kv_blocks)
        self._chunks_last = False  # had the last step chunks?

    @staticmethod
    def limits(settings: SarathiScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.max_model_len,
            chunked=settings.chunked,
            checks_context=True,
            decodes_count=settings.chunked and settings.batching == "hybrid",
            watermark=settings.watermark,
        )

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Decodes, then prompts under way, then new ones; or, alternating, chunks or decodes."""
        if self._alternates:
            return self._take_turns(view, pool)
        preempted = advance_decodes(view, pool)
        decodes = count_decodes(view) - sum(seq.decoding for seq in preempted) if self._chunked else 0
        return self._plan(view, pool, self._budget - decodes, preempted)

    def _take_turns(self, view: View, pool: BlockPool) -> Plan:
        if not (self._chunks_last and count_decodes(view)):
            plan = self._plan(view, pool, self._budget, ())
            if plan.chunks:
                self._chunks_last = True
                return plan._replace(paused=True)
        self._chunks_last = False
        preempted = advance_decodes(view, pool)
        return Plan(preempted) if preempted else STEADY

    def _plan(self, view: View, pool: BlockPool, budget: int, preempted: Sequence[SequenceState]) -> Plan:
        """The plan whose chunks have `budget` tokens."""
        if not self._chunked:
            chunks = [] if preempted else admit_prompts(view, pool, self._max_num_seqs, budget, self._watermark)
            admitted = [seq for seq, _ in chunks]
        else:
            chunks = self._continue(view, budget, preempted)
            budget -= sum(tokens for _, tokens in chunks)
            admitted = [] if preempted else self._admit(view, pool, chunks, budget)
        return Plan(preempted, admitted, chunks) if chunks or preempted else STEADY

    @staticmethod
    def _continue(view: View, budget: int, preempted: Sequence[SequenceState]) -> Chunks:
        """The next chunks of prompts that are under way; their blocks they have."""
        chunks: Chunks = []
        for seq in view.prefilling:
            tokens = min(seq.todo, budget)
            if tokens <= 0:
                break
            if seq not in preempted:
                chunks.append((seq, tokens))
                budget -= tokens
        return chunks

    def _admit(self, view: View, pool: BlockPool, chunks: Chunks, budget: int) -> list[SequenceState]:
        """Waiting sequences, head first, until one does not fit; their chunks are added to `chunks`."""
        admitted: list[SequenceState] = []
        running = view.running
        for seq in view.waiting:
            if budget <= 0 or running >= self._max_num_seqs:
                break
            if not pool.fits(seq, (), seq.target, self._watermark if running else 0):
                break
            pool.allocate(seq, seq.target)
            tokens = min(seq.target, budget)
            chunks.append((seq, tokens))
            admitted.append(seq)
            budget -= tokens
            running += 1
        return admitted
