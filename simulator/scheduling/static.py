"""Static batching: a batch is formed once, and the next one when all of its sequences have ended.

It is the batching before iteration-level scheduling (FasterTransformer behind Triton, Hugging Face `generate`; the
"request-level scheduling" of Yu et al., OSDI '22, section 2). When no sequence runs, a batch is formed of waiting ones,
head first, within a number of sequences, a number of prompt tokens and the memory, which is reserved for each prompt
and all of `max_tokens`. The prompts are computed in one step. No request replaces a sequence that has ended before the
longest has ended.

A padded batch is computed as a rectangle: prompts at the length of the longest, and at every step a row for each
sequence, ended or not, whose context is the longest prompt and all steps since. Otherwise kernels skip the padding,
and a sequence that has ended costs nothing.

Left out: waiting for a batch to fill, and outputs that are returned only when their whole batch is done: tokens are
delivered after each step. Memory of ended sequences is freed at once, but no request can use it.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import StaticScheduler
from simulator.scheduling.building_blocks import Chunks
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View


class StaticPolicy:
    """Request-level batches, formed when no sequence runs. Its state is the rectangle: rows and tokens."""

    def __init__(self, settings: StaticScheduler, kv_blocks: int) -> None:
        self._max_num_seqs = settings.max_num_seqs
        self._budget = settings.max_num_batched_tokens
        self._padded = settings.padded
        self._rows = self._length = 0

    @staticmethod
    def limits(settings: StaticScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.max_model_len,
            chunked=False,
            reserves=settings.RESERVES,
        )

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Schedule the next token of the batch, or a new batch if no sequence runs."""
        if view.running:
            self._length += 1
            return Plan(padded=(self._rows, self._length)) if self._padded else STEADY
        chunks = self._form(view, pool)
        if not chunks:
            return STEADY
        self._rows, self._length = len(chunks), max(tokens for _, tokens in chunks)
        padded = (self._rows, self._length) if self._padded else None
        return Plan(admitted=[seq for seq, _ in chunks], chunks=chunks, padded=padded)

    def _form(self, view: View, pool: BlockPool) -> Chunks:
        chunks: Chunks = []
        longest = total = 0
        for seq in view.waiting:
            longest, total = max(longest, seq.target), total + seq.target
            computed = longest * (len(chunks) + 1) if self._padded else total
            if len(chunks) == self._max_num_seqs or computed > self._budget:
                break
            if not pool.grow(seq, seq.target):
                break
            chunks.append((seq, seq.target))
        return chunks
