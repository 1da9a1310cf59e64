"""Common parts of several policies: serving the decodes, and admitting whole prompts."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.memory import BlockPool
from simulator.scheduling.plan import View
from simulator.scheduling.sequence import SequenceState

Chunks = list[tuple[SequenceState, int]]


def count_decodes(view: View) -> int:
    """Return the number of running sequences that advance by default."""
    if view.decodes is not None:
        return view.decodes
    return sum(seq.decoding and seq.todo > 0 for seq in view.oldest_first())


def decode_tokens(view: View) -> int:
    """Return the number of tokens of these sequences in the next step: one each, and their drafts."""
    if view.decodes is not None:
        return view.decode_tokens
    return sum(seq.todo for seq in view.oldest_first() if seq.decoding)


def advance_decodes(view: View, pool: BlockPool) -> Sequence[SequenceState]:
    """Allocate the blocks of the next step of each running decode, oldest first.

    If free blocks do not suffice, the sequence admitted last is preempted: its blocks are released. Returns the
    preempted sequences in the order of their preemption.
    """
    if view.decodes is not None:
        lacking = view.decode_blocks()
        if lacking <= pool.free:
            pool.take(lacking)
            return ()
    order = list(view.oldest_first())
    at, end = 0, len(order)
    while at < end:
        seq = order[at]
        if seq.decoding and seq.todo:
            while not pool.grow(seq, seq.computed + seq.todo):
                end -= 1
                pool.release(order[end])
                if end == at:
                    break
        at += 1
    return order[end:][::-1]


def admit_prompts(view: View, pool: BlockPool, max_num_seqs: int, budget: int, watermark: int = 0) -> Chunks:
    """Admit waiting sequences, each with all of its known tokens in this step: head first, until one does not fit.

    `budget` is in tokens, `max_num_seqs` limits running and admitted sequences together, and `watermark` blocks stay
    free if any sequence runs.
    """
    chunks: Chunks = []
    running = view.running
    for seq in view.waiting:
        tokens = seq.target
        if running >= max_num_seqs or tokens > budget:
            break
        if not pool.fits(seq, (), tokens, watermark if running else 0):
            break
        pool.allocate(seq, tokens)
        chunks.append((seq, tokens))
        budget -= tokens
        running += 1
    return chunks
