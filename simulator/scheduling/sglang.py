"""Continuous batching of SGLang 0.5.1 (`managers/scheduler.py`, `schedule_policy.py`, `schedule_batch.py`).

A step prefills or decodes. Prefill has precedence: no decode advances in such a step. The waiting queue is sorted again
for each prefill step. A request is admitted if its uncached prompt and all of its allowed output fit beside the
expected output of the running ones: a share, the new-token ratio, of their remaining allowed output. The ratio falls
with every decode step. If it was too low and a decode lacks memory, requests are retracted: their blocks are freed,
they return to the back of the queue, and the ratio rises.

The state of the scheduler is kept by the policy: the ratio, and whether the batch is full. Both depend only on the
calls and on the number of decode steps between them, so that coalesced steps do not change them.

Left out: priorities and other orders of the queue (dfs-weight, lof, random); the stricter check of memory for clients
that ignore the end of text while the radix cache is off; the step in which a finished request still decodes under the
overlap scheduler. The radix tree is `memory.PrefixPool` with pages of the pool's block size,
not of one token: the cached prefix is up to a page shorter, and a sequence wastes up to a page. Blocks of a retracted
request can still be found, including those of its output; blocks of a prompt can be found from the next step on.
Requests of equal rank keep their order in the waiting queue, not that of the last sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from math import floor
from operator import itemgetter

from simulator.memory import BlockPool
from simulator.scenario.schedulers import SglangScheduler
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View
from simulator.scheduling.sequence import ContentSequence, SequenceState

#: Most output tokens of a request that admission counts.
_CLIP_MAX_NEW_TOKENS = 4096
#: Most waiting requests whose prefixes are looked up; with more, the queue is not sorted.
_MOST_SORTED = 128
#: A request with at most this many cached tokens is sorted last, if an earlier one shares at least as many with it.
_IN_BATCH_THRESHOLD = 32
#: The ratio at the start, its floor as a share of the start, and the number of decode steps to reach the floor.
_START, _FLOOR, _DECAY_STEPS = 0.7, 0.14, 600
#: Number of further tokens of each request for which the ratio has room after a retraction.
_RETRACT_STEPS = 20


class NewTokenRatio:
    """The share of its allowed output that a running request is expected to need.

    It falls from `start` to `floor`, linearly over decode steps, which the caller counts.
    """

    def __init__(self, conservativeness: float) -> None:
        self.start = min(_START * conservativeness, 1.0)
        self.floor = min(self.start * _FLOOR, 1.0)
        self._decay = (self.start - self.floor) / _DECAY_STEPS
        self._from, self._since = self.start, 0

    def at(self, decode_steps: int) -> float:
        """Return the ratio after this total number of decode steps."""
        return max(self._from - self._decay * (decode_steps - self._since), self.floor)

    def set(self, ratio: float, decode_steps: int) -> None:
        """Let the ratio fall from `ratio`, starting at this total number of decode steps."""
        self._from, self._since = ratio, decode_steps


class SglangPolicy:
    """SGLang's scheduler; its settings are those of SGLang's server (`SglangScheduler`)."""

    def __init__(self, settings: SglangScheduler, kv_blocks: int) -> None:
        self._max_running = self.limits(settings).max_num_seqs
        self._chunk = settings.max_num_batched_tokens
        self._max_prefill = settings.max_prefill_tokens
        self._mixes = settings.enable_mixed_chunk
        self._lpm = settings.schedule_policy == "lpm" and settings.enable_prefix_caching
        self._ratio = NewTokenRatio(settings.schedule_conservativeness)
        self._mixed_steps = 0  # steps with decodes and a prompt; the ratio does not fall in them
        self._full: int | None = None  # running requests of a full batch: none is admitted until one leaves

    @staticmethod
    def limits(settings: SglangScheduler) -> Limits:
        """Return the limits of the settings, in which the engine's defaults are filled in."""
        seqs, overlap = settings.max_num_seqs, settings.async_scheduling
        if seqs is None or overlap is None:
            raise AssertionError("with_engine_defaults has not filled in the settings of the scheduler")
        return Limits(
            max_num_seqs=seqs,
            max_num_batched_tokens=max(settings.max_num_batched_tokens, seqs),
            max_model_len=settings.max_model_len,
            chunked=True,
            prefix_caching=settings.enable_prefix_caching,
            free_list="append",
            async_scheduling=overlap,
            requeue="back",
        )

    def new_token_ratio(self, view: View) -> float:
        """Return the ratio at the start of the next step."""
        return self._ratio.at(self._decay_steps(view))

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Schedule a prefill step if there is a prompt to compute and memory for it, else a decode step."""
        if view.waiting or view.prefilling:
            plan = self._prefill(view, pool)
            if plan is not None:
                return plan
        elif not view.running:
            self._ratio.set(self._ratio.start, self._decay_steps(view))
        return self._decode(view, pool)

    def _decay_steps(self, view: View) -> int:
        """Return the number of steps so far in which the ratio falls."""
        return view.decode_steps - self._mixed_steps

    # --- prefill

    def _prefill(self, view: View, pool: BlockPool) -> Plan | None:
        running = view.running - len(view.prefilling)
        if not running:
            self._full = None
        if not view.prefilling and self._full is not None:
            return None
        mixed, lacking = (running, _lacking_blocks(view, pool)) if self._mixes else (0, 0)
        ratio = self.new_token_ratio(view)
        reserved = sum(ratio * min(_tokens_left(seq), _CLIP_MAX_NEW_TOKENS) for seq in _decoding(view))
        step = _PrefillStep(pool, self._max_prefill - mixed, self._chunk - mixed, reserved, lacking)
        for seq in view.prefilling:  # one at most: the request with the last chunk of the previous prefill step
            step.resume(seq)
        for seq in self._in_order(view, pool):
            if len(step.chunks) >= self._max_running - running:
                self._full = running
                break
            if not step.admit(seq):
                break
        if step.no_memory:
            self._full = running
        if not step.chunks:
            return None
        step.register()
        if mixed:
            _grow_decodes(view, pool, lacking)
            self._mixed_steps += 1
        return Plan((), step.admitted, step.chunks, paused=not mixed)

    def _in_order(self, view: View, pool: BlockPool) -> Iterable[SequenceState]:
        """Return the waiting queue, sorted by the longest cached prefix if the settings say so.

        Of requests that share a prefix which is not cached yet, only the first keeps its rank. The others are sorted
        last, since the prefix will be cached after the first.
        """
        if not self._lpm or len(view.waiting) > _MOST_SORTED:
            return view.waiting
        size, seen, ranked = pool.block_size, set[int](), []
        for seq in view.waiting:
            cached = size * len(pool.find(seq, (seq.target - 1) // size))
            rank = -cached
            if cached <= _IN_BATCH_THRESHOLD:
                keys = seq.shared if isinstance(seq, ContentSequence) else ()
                if size * sum(1 for _ in takewhile(seen.__contains__, keys)) >= _IN_BATCH_THRESHOLD:
                    rank = 1
                else:
                    seen.update(keys)
            ranked.append((rank, seq))
        ranked.sort(key=itemgetter(0))
        return [seq for _, seq in ranked]

    # --- decode

    def _decode(self, view: View, pool: BlockPool) -> Plan:
        if self._full is not None:
            running = view.running - len(view.prefilling)
            self._full = running if running >= self._full else None
        lacking = _lacking_blocks(view, pool)
        if lacking > pool.free:
            return self._retract(view, pool)
        _grow_decodes(view, pool, lacking)
        return STEADY

    def _retract(self, view: View, pool: BlockPool) -> Plan:
        """Retract decodes until the free blocks suffice for the others.

        Those with the fewest outputs are retracted first, of equals the one with the longest prompt. If the last one
        still lacks memory, a partly computed prompt is retracted. If that does not suffice, the last decode is, too,
        while SGLang asserts that one alone has memory: here, transfers may hold the rest. Then the ratio does not
        change.
        """
        kept = sorted(_decoding(view), key=lambda seq: (-_output_tokens(seq), seq.prompt_tokens))
        retracted: list[SequenceState] = []
        cut = list(view.prefilling)
        while _lacking_blocks_of(kept, pool) > pool.free:
            retracted.append(cut.pop() if len(kept) == 1 and cut else kept.pop())
            pool.release(retracted[-1])
        for seq in kept:
            pool.allocate(seq, seq.computed + seq.todo)
        self._full = None
        if kept:
            room = sum(map(_output_tokens, kept)) + _RETRACT_STEPS * len(kept)
            self._ratio.set(min(room / sum(seq.max_tokens for seq in kept), 1.0), self._decay_steps(view) + 1)
        return Plan(retracted)


class _PrefillStep:
    """A prefill step while it is formed, with the limits that are left.

    `inputs` and `chunk` are tokens that may still be computed, `reserved` tokens that the running requests are expected
    to need, `spare` blocks that stay free for the decodes of this step.
    """

    def __init__(self, pool: BlockPool, inputs: int, chunk: int, reserved: float, spare: int) -> None:
        self.chunks: list[tuple[SequenceState, int]] = []
        self.admitted: list[SequenceState] = []
        self.no_memory = False
        self._pool = pool
        self._inputs, self._chunk = inputs, chunk
        self._reserved, self._spare = reserved, spare

    def resume(self, seq: SequenceState) -> None:
        """Add the next chunk of a partly computed prompt; its output counts from its last chunk on."""
        pool = self._pool
        held = seq.blocks + pool.free - self._spare
        tokens = min(seq.todo, self._chunk, held * pool.block_size - seq.computed)
        if tokens == seq.todo:
            self._reserved += self._output(seq)
        if tokens > 0:
            self._compute(seq, tokens)

    def admit(self, seq: SequenceState) -> bool:
        """Admit a waiting request if it fits; False if no request after it can be admitted."""
        pool = self._pool
        size = pool.block_size
        hits = pool.find(seq, (seq.target - 1) // size)  # the last token is always computed
        output = self._output(seq)
        if not pool.fits(seq, hits, seq.target + floor(output + self._reserved) + 1, self._spare):
            self.no_memory = True
            return False
        tokens = seq.target - len(hits) * size
        if pool.blocks_for(tokens) * size >= self._inputs and self.chunks:
            return False
        if pool.blocks_for(tokens) * size > self._chunk:
            tokens = self._chunk // size * size
            if tokens <= 0:
                return False
        else:
            self._reserved += output
        pool.adopt(seq, hits)
        self.admitted.append(seq)
        self._compute(seq, tokens, cached=len(hits) * size)
        return self._inputs > 0 and self._chunk > 0

    def _output(self, seq: SequenceState) -> int:
        """Return the output tokens that admission counts: at most those that the pool can hold, as the engine does."""
        return min(_tokens_left(seq), _CLIP_MAX_NEW_TOKENS, self._pool.blocks * self._pool.block_size - seq.target - 1)

    def _compute(self, seq: SequenceState, tokens: int, cached: int | None = None) -> None:
        pool = self._pool
        pool.allocate(seq, (seq.computed if cached is None else cached) + tokens)
        self.chunks.append((seq, tokens))
        rounded = pool.blocks_for(tokens) * pool.block_size
        self._inputs -= rounded
        self._chunk -= rounded

    def register(self) -> None:
        """Register the blocks that this step computes, so that later steps find them."""
        new = {seq.index for seq in self.admitted}
        for seq, tokens in self.chunks:
            self._pool.register(seq, (seq.cached if seq.index in new else seq.computed) + tokens)


def _output_tokens(seq: SequenceState) -> int:
    """Return the number of output tokens so far, including the one in flight."""
    return seq.target - seq.prompt_tokens


def _tokens_left(seq: SequenceState) -> int:
    """Return the number of output tokens that the client still allows."""
    return seq.max_tokens - _output_tokens(seq)


def _decoding(view: View) -> Iterator[SequenceState]:
    """Return the running requests that decode in the next step, oldest first."""
    return (seq for seq in view.oldest_first() if seq.decoding and seq.todo)


def _lacking_blocks(view: View, pool: BlockPool) -> int:
    """Return the number of blocks that the decodes of the next step lack."""
    if view.decodes is not None:
        return view.decode_blocks()
    return _lacking_blocks_of(_decoding(view), pool)


def _lacking_blocks_of(decodes: Iterable[SequenceState], pool: BlockPool) -> int:
    return sum(pool.lacking(seq, seq.computed + seq.todo) for seq in decodes)


def _grow_decodes(view: View, pool: BlockPool, lacking: int) -> None:
    """Allocate the blocks of all decodes, of which enough must be free."""
    if view.decodes is not None:
        pool.take(lacking)
        return
    for seq in _decoding(view):
        pool.allocate(seq, seq.computed + seq.todo)
