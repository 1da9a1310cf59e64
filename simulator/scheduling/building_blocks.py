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


def advance_decodes(view: View, pool: BlockPool) -> Sequence[SequenceState]:
    """Give each running decode the block of its next token, oldest first. Where blocks are short, the sequence admitted
    last gives way; those that did are released, and returned in that order."""
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
            while not pool.grow(seq, seq.computed + 1):
                end -= 1
                pool.release(order[end])
                if end == at:
                    break
        at += 1
    return order[end:][::-1]


def admit_prompts(view: View, pool: BlockPool, max_num_seqs: int, budget: int, watermark: int = 0) -> Chunks:
    """Waiting sequences that compute all that is known of them in this step: head first, until one does not fit.

    `budget` are tokens, `max_num_seqs` bounds the running list with them, and `watermark` blocks stay free unless
    nothing runs.
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
