"""Continuous batching with chunked prefill of vLLM V1 (`vllm/v1/core/sched/scheduler.py`).

Decode and prefill share one token budget a step. The running list is scheduled first, in order of admission; then the
waiting queue, head first, without skipping, and only if no sequence was preempted. The sequence to preempt is
the one admitted last, or another by the settings; it is recomputed. Features that depend on each sequence in each step
are in `scheduling.vllm_explicit`.

Full blocks are registered for prefix caching in the step that fills them: here those of prefills. The batch registers
those of decodes, by their counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.memory import BlockPool
from simulator.scheduling.plan import STEADY, Plan, View
from simulator.scheduling.sequence import SequenceState
from simulator.scheduling.setup import NO_CAP, PolicySetup
from simulator.scheduling.vllm_settings import victim_rule, vllm_limits

Chunks = list[tuple[SequenceState, int]]
Hits = Sequence[int]


class VllmPolicy:
    """vLLM's scheduler, by arrival or by priority, with its settings (`VllmScheduler`).

    With `speculation`, decodes compute their drafts, too, and blocks are allocated for look-ahead tokens, up to
    `max_model_len`. Then the drafts of all decodes must fit the budget, and prefills be last in the running list:
    `vllm_settings.needs_explicit` checks it.
    """

    def __init__(self, setup: PolicySetup) -> None:
        settings, speculation = setup.settings, setup.speculation
        limits = vllm_limits(settings)
        self._budget = limits.max_num_batched_tokens
        self._max_num_seqs = limits.max_running
        self._chunked = settings.enable_chunked_prefill
        self._threshold = settings.long_prefill_token_threshold
        self._adaptive = settings.long_prefill_token_threshold_adaptive
        self._max_partial = settings.max_num_partial_prefills
        self._reserve = settings.scheduler_reserve_full_isl
        self._watermark = limits.spare_blocks(setup.kv_blocks)
        self._k = speculation.k if speculation else 0
        self._lookahead = speculation.lookahead if speculation else 0
        self._surcharge = speculation.surcharge if speculation else 0
        self._next_token = speculation.next_token if speculation else 0
        self._max_model_len = setup.max_model_len
        self._victim = victim_rule(settings)
        self._in_flight = int(limits.async_scheduling)  # tokens of a decode in the step in flight

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Schedule running sequences, then waiting ones."""
        decodes = view.decodes
        if decodes is not None and not view.waiting and not view.prefilling and decodes <= self._budget:
            lacking = view.decode_blocks()
            if lacking <= pool.free:  # in most steps all sequences decode
                pool.take(lacking)
                return STEADY
        chunks: Chunks = []
        budget = self._advance_all(view, pool, chunks)
        if budget is None:
            return self._scan(view, pool)
        if view.waiting and budget:
            return self._admit(view, pool, chunks, budget, ())
        return Plan((), (), chunks) if chunks else STEADY

    def _advance_all(self, view: View, pool: BlockPool, chunks: Chunks) -> int | None:
        """Schedule the running list by its totals and return the budget left; None if its order could matter.

        The order does not matter if every decode gets its token and its block, and no prefill is truncated in favour
        of a decode after it: that is, if the budget suffices for all, or the prefills are last.
        """
        decodes = view.decodes
        if decodes is None or decodes > self._budget:
            return None
        lacking = of_decodes = view.decode_blocks()
        if lacking > pool.free:
            return None
        budget = self._budget - decodes
        if self._k:
            budget = self._budget - view.decode_tokens - self._surcharge * decodes
        if not view.prefilling:
            pool.take(of_decodes)
            return budget
        cap = self._cap(view)
        wanted = [min(seq.todo, cap) for seq in view.prefilling]
        if sum(wanted) > budget and not view.prefilling_last:
            return None
        for seq, tokens in zip(view.prefilling, wanted, strict=True):
            tokens = min(tokens, budget - self._surcharge)
            if tokens <= 0:
                break
            lacking += pool.lacking(seq, self._with_lookahead(seq.computed + tokens))
            chunks.append((seq, tokens))
            budget -= tokens + self._surcharge
        if lacking > pool.free:
            chunks.clear()
            return None
        pool.take(of_decodes)
        for seq, tokens in chunks:
            pool.allocate(seq, self._with_lookahead(seq.computed + tokens))
            pool.register(seq, min(seq.computed + tokens, seq.target - self._next_token))
        return budget

    def _scan(self, view: View, pool: BlockPool) -> Plan:
        """Schedule the running list one by one, in order: the full rule, for steps without `_advance_all`."""
        order = list(view.oldest_first())
        budget, at, cap = self._budget, 0, self._cap(view)
        served: dict[SequenceState, int] = {}
        preempted: list[SequenceState] = []
        while at < len(order) and budget > self._surcharge:
            seq = order[at]
            at += 1
            tokens = min(seq.todo, cap, budget - self._surcharge)
            if not tokens or (seq.decoding and tokens < seq.todo):  # a decode has all of its drafts, or waits
                continue
            room = self._with_lookahead(seq.computed + tokens)
            while not pool.grow(seq, room):
                place = self._victim(order)
                victim = order.pop(place)
                at -= place < at
                if victim in served:
                    budget += self._unserve(victim, served.pop(victim), pool)
                pool.release(victim)
                preempted.append(victim)
                if victim is seq:
                    break
            else:
                if not seq.decoding:
                    pool.register(seq, min(seq.computed + tokens, seq.target - self._next_token))
                served[seq] = tokens
                budget -= tokens + self._surcharge
        chunks = [(seq, tokens) for seq, tokens in served.items() if not seq.decoding]
        held = [seq for seq in order if seq.decoding and seq.todo and seq not in served]
        if preempted or not view.waiting:
            return Plan(preempted, (), chunks, held)
        return self._admit(view, pool, chunks, budget, held)

    def _unserve(self, seq: SequenceState, tokens: int, pool: BlockPool) -> int:
        """Cancel the `tokens` of a sequence that is preempted in the step that had scheduled them; return their budget.

        As in vLLM the block that they would fill stays registered.
        """
        if seq.decoding:
            pool.register(seq, seq.computed + tokens - self._in_flight)
        return tokens + self._surcharge

    def _admit(
        self, view: View, pool: BlockPool, chunks: Chunks, budget: int, held: list[SequenceState] | tuple[()]
    ) -> Plan:
        """Admit waiting sequences, head first, until one does not fit."""
        admitted: list[SequenceState] = []
        running, cap = view.running, self._cap(view)
        partial = 0 if self._max_partial is None else self._partial(view, chunks)
        pads = self._k > 0 and not chunks
        busy = pads and bool(view.decodes)
        for seq in view.waiting:
            if budget <= 0 or running >= self._max_num_seqs:
                break
            # The last token is always computed.
            hits = pool.find(seq, (seq.target - 1) // pool.block_size) if pool.caches else ()
            cached = len(hits) * pool.block_size
            tokens = min(seq.target - cached, cap)
            padded = pads and tokens == 1 and (busy or cached > 0) and seq.target + self._k <= self._max_model_len
            if padded:  # with placeholder drafts, so that all steps of decodes have the same shape
                tokens += self._k
            room = budget - self._surcharge
            if tokens > room:
                if padded or not self._chunked or room <= 0:
                    break
                tokens = room
            if self._max_partial is not None and cached + tokens < seq.target:
                if partial >= self._max_partial:
                    break
                partial += 1
            if not self._take_in(seq, hits, cached + tokens, running, pool):
                break
            admitted.append(seq)
            chunks.append((seq, tokens))
            budget -= tokens + self._surcharge
            running += 1
        return Plan((), admitted, chunks, held) if chunks or held else STEADY

    def _partial(self, view: View, chunks: Chunks) -> int:
        """Return the number of running sequences whose prompt is still incomplete after these chunks."""
        tokens = {seq.index: tokens for seq, tokens in chunks}
        return sum(seq.todo > tokens.get(seq.index, 0) for seq in view.prefilling)

    def _take_in(self, seq: SequenceState, hits: Hits, end: int, running: int, pool: BlockPool) -> bool:
        """Allocate blocks for the first `end` tokens of a waiting sequence; False if too few are free.

        With `scheduler_reserve_full_isl`, the free blocks must suffice for all known tokens, though they are not
        allocated yet.
        """
        room = self._with_lookahead(end) if self._lookahead else end
        whole = max(room, seq.target) if self._reserve else room
        if not pool.fits(seq, hits, whole, self._watermark if running else 0):
            return False
        if not pool.caches:
            pool.allocate(seq, room)
            return True
        pool.adopt(seq, hits)
        pool.allocate(seq, room)
        pool.register(seq, min(end, seq.target - self._next_token))
        return True

    def _with_lookahead(self, end: int) -> int:
        """Return the number of tokens for which blocks are allocated to compute the first `end`."""
        return min(end + self._lookahead, self._max_model_len) if self._lookahead else end

    def _cap(self, view: View) -> int:
        """Return the most tokens of one sequence in a step: the long-prefill threshold if there are several."""
        if not self._threshold and not self._adaptive:
            return NO_CAP
        sequences = view.running + len(view.waiting)
        if sequences <= 1:
            return NO_CAP
        share = self._budget // sequences if self._adaptive else 0
        return max(self._threshold, share) or self._budget
