"""Stall-free batches of chunked prompts beside decodes: Sarathi-Serve (Agrawal et al., OSDI '24, Algorithm 3).

A step has a token budget. It has every running decode; then the next chunks of partly computed prompts, oldest first;
then chunks of waiting ones, head first, while budget is left. A prompt gets all of its blocks at admission, with a
watermark left free (`sarathi/core/scheduler/sarathi_scheduler.py`, block manager). If decodes lack blocks, the sequence
admitted last is preempted and recomputed, from the front of the queue; that step admits no request, while
Sarathi-Serve would go on to the queue.

Two settings each disable one part of it (Table 4 of the paper). Without chunks ("hybrid-batching-only") a prompt is
computed in one step beside the decodes, which then do not count against the budget. With `batching: alternating`
("chunked-prefills-only") a step has either chunks or decodes, and the two alternate while there are both: else a stream
of chunks would stall decodes as whole prompts do, and the paper measures a quarter of their tail latency or less. The
budget then limits chunks only. The paper does not describe this alternation: it was chosen to match Table 4, which is
therefore no independent check of this setting.

Left out: pipeline stages, and chunk sizes that grow along a prompt (`enable_dynamic_chunking_schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.memory import BlockPool
from simulator.scenario.schedulers import SarathiScheduler
from simulator.scheduling.building_blocks import Chunks, admit_prompts, advance_decodes, count_decodes, decode_tokens
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View
from simulator.scheduling.sequence import SequenceState


class SarathiPolicy:
    """The policy of Sarathi-Serve. Its only state is whether the last step had chunks."""

    def __init__(self, settings: SarathiScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._chunked = settings.chunked
        self._alternates = settings.batching == "alternating"
        self._watermark = self.limits(settings).spare_blocks(kv_blocks)
        self._chunks_last = False  # whether the last step had chunks

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
        """Schedule decodes, then partly computed prompts, then new ones; or, if alternating, chunks or decodes."""
        if self._alternates:
            return self._alternate(view, pool)
        preempted = advance_decodes(view, pool)
        decodes = decode_tokens(view) - sum(seq.todo for seq in preempted if seq.decoding) if self._chunked else 0
        return self._plan(view, pool, self._budget - decodes, preempted)

    def _alternate(self, view: View, pool: BlockPool) -> Plan:
        if not (self._chunks_last and count_decodes(view)):
            plan = self._plan(view, pool, self._budget, ())
            if plan.chunks:
                self._chunks_last = True
                return plan._replace(paused=True)
        self._chunks_last = False
        preempted = advance_decodes(view, pool)
        return Plan(preempted) if preempted else STEADY

    def _plan(self, view: View, pool: BlockPool, budget: int, preempted: Sequence[SequenceState]) -> Plan:
        """Return the plan whose chunks have at most `budget` tokens."""
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
        """Return the next chunks of partly computed prompts, whose blocks were allocated at admission."""
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
        """Admit waiting sequences, head first, until one does not fit; append their chunks to `chunks`."""
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
