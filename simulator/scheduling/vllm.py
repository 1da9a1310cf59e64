"""Continuous batching with chunked prefill, the way vLLM V1 does it (`vllm/v1/core/sched/scheduler.py`).

One token budget a step, shared by decode and prefill; the running list is served first, in order of admission; then
the waiting queue, head first, without skipping, and only if nothing was preempted. The victim of a preemption is the
sequence admitted last; it is recomputed. Prefix caching, priorities and what else looks at each sequence in each step
is in `scheduling.exact`.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schema import VllmScheduler
from simulator.scheduling.plan import STEADY, Plan, View
from simulator.scheduling.sequence import Sequence

Chunks = list[tuple[Sequence, int]]

#: A cap that never binds.
NO_CAP = 2**62


class VllmPolicy:
    """First come, first served; settings are those of vLLM (see `VllmScheduler`)."""

    def __init__(self, settings: VllmScheduler, kv_blocks: int) -> None:
        self._budget = settings.max_num_batched_tokens
        self._max_num_seqs = settings.max_num_active_seqs or settings.max_num_seqs
        self._chunked = settings.enable_chunked_prefill
        self._threshold = settings.long_prefill_token_threshold
        self._adaptive = settings.long_prefill_token_threshold_adaptive
        self._reserve = settings.scheduler_reserve_full_isl
        # vLLM takes the fraction of all blocks, its reserved block 0 among them.
        self._watermark = int(settings.watermark * (kv_blocks + 1))

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Running sequences, then waiting ones."""
        decodes = view.decodes
        if decodes is not None and not view.waiting and not view.prefilling and decodes <= self._budget:
            lacking = view.decode_blocks()
            if lacking <= pool.free:  # most steps: everybody decodes
                pool.free -= lacking
                return STEADY
        chunks: Chunks = []
        budget = self._advance_all(view, pool, chunks)
        if budget is None:
            return self._scan(view, pool)
        if view.waiting and budget:
            return self._admit(view, pool, chunks, budget, ())
        return Plan((), (), chunks) if chunks else STEADY

    def _advance_all(self, view: View, pool: BlockPool, chunks: Chunks) -> int | None:
        """Serve the running list by its totals and return the budget left; None where its order could matter.

        It cannot matter if every decode gets its token and its block, and no prefill is cut short in favour of a
        decode behind it: that is, if the budget suffices for all, or the prefills stand last.
        """
        decodes = view.decodes
        if decodes is None or decodes > self._budget:
            return None
        lacking = view.decode_blocks()
        if lacking > pool.free:
            return None
        budget = self._budget - decodes
        if not view.prefilling:
            pool.free -= lacking
            return budget
        cap = self._cap(view)
        wanted = [min(seq.todo, cap) for seq in view.prefilling]
        if sum(wanted) > budget and not view.prefilling_last:
            return None
        for seq, tokens in zip(view.prefilling, wanted, strict=True):
            if budget == 0:
                break
            tokens = min(tokens, budget)
            lacking += pool.blocks_for(seq.computed + tokens) - seq.blocks
            chunks.append((seq, tokens))
            budget -= tokens
        if lacking > pool.free:
            chunks.clear()
            return None
        pool.free -= lacking
        for seq, tokens in chunks:
            seq.blocks = pool.blocks_for(seq.computed + tokens)
        return budget

    def _scan(self, view: View, pool: BlockPool) -> Plan:
        """Serve the running list one by one, in order: the rule itself, of which `_advance_all` is the short cut."""
        order = list(view.oldest_first())
        budget, end, at, cap = self._budget, len(order), 0, self._cap(view)
        chunks: Chunks = []
        while at < end and budget:
            seq = order[at]
            tokens = min(seq.todo, cap, budget)
            end = self._make_room(order, end, seq, tokens, pool)
            if at >= end:  # it was the last one and had to give way itself
                break
            if tokens and not seq.decoding:
                chunks.append((seq, tokens))
            budget -= tokens
            at += 1
        preempted = order[: end - 1 if end else None : -1] if end < len(order) else []
        held = [seq for seq in order[at:end] if seq.decoding and seq.todo]
        if preempted or not view.waiting:
            return Plan(preempted, (), chunks, held)
        return self._admit(view, pool, chunks, budget, held)

    @staticmethod
    def _make_room(order: list[Sequence], end: int, seq: Sequence, tokens: int, pool: BlockPool) -> int:
        """Preempt from the end of the running list until `seq` has its blocks; return the list's new end."""
        while tokens and not pool.grow(seq, seq.computed + tokens):
            end -= 1
            pool.release(order[end])
            if order[end] is seq:
                break
        return end

    def _admit(
        self, view: View, pool: BlockPool, chunks: Chunks, budget: int, held: list[Sequence] | tuple[()]
    ) -> Plan:
        """Add waiting sequences, head first, until one does not fit."""
        admitted: list[Sequence] = []
        running, cap = view.running, self._cap(view)
        for seq in view.waiting:
            tokens = min(seq.todo, cap)
            if budget == 0 or running >= self._max_num_seqs or (tokens > budget and not self._chunked):
                break
            tokens = min(tokens, budget)
            if not self._fits(seq, tokens, running, pool):
                break
            pool.grow(seq, tokens)
            admitted.append(seq)
            chunks.append((seq, tokens))
            budget -= tokens
            running += 1
        return Plan((), admitted, chunks, held) if chunks or held else STEADY

    def _fits(self, seq: Sequence, tokens: int, running: int, pool: BlockPool) -> bool:
        """Are there blocks for the whole known sequence (nothing is reserved by that) or, if so set, this chunk?"""
        needed = pool.blocks_for(seq.todo if self._reserve else tokens)
        return needed + (self._watermark if running else 0) <= pool.free

    def _cap(self, view: View) -> int:
        """Most tokens of one sequence in a step: the long-prefill threshold, unless the sequence is alone."""
        if not self._threshold and not self._adaptive:
            return NO_CAP
        sequences = view.running + len(view.waiting)
        if sequences <= 1:
            return NO_CAP
        share = self._budget // sequences if self._adaptive else 0
        return max(self._threshold, share) or self._budget
