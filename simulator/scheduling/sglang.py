"""Continuous batching the way SGLang does it, version 0.5.1 (`managers/scheduler.py`, `schedule_policy.py`,
`schedule_batch.py`).

A step prefills or decodes. Prefill has precedence: while it runs, decodes stand still. The waiting queue is ordered
anew for each prefill step; a request is taken in if its uncached prompt and its whole allowed output would fit beside
what the running ones are expected to need, which is a share, the new-token ratio, of what they are still allowed. The
ratio falls with every decode step. Where it was too hopeful and a decode finds no memory, requests are retracted: their
blocks are freed, they go to the back of the queue, and the ratio rises.

The scheduler's state is the policy's: the ratio, and whether the batch is full. Both follow from the calls and from the
number of decode steps in between, so that a batch that does not ask in every step gets the same answers.

Left out: priorities and other orders of the queue (dfs-weight, lof, random); speculative decoding; the finer test of
memory for clients that ignore the end of text while the radix cache is off; the step in which a finished request still
decodes under the overlap scheduler. The radix tree is `memory.PrefixPool` with pages of the pool's block size, not of
one token: up to a page less of a prompt is found, and a sequence wastes up to a page. What a retracted request had
computed stays findable, its output included; a prompt is findable from the step after its own on. Ties of the order go
to the head of the queue as it is, not as the last ordering left it.
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

#: Most output tokens of a request that admission reckons with.
_CLIP = 4096
#: With more waiting, their prefixes are not looked up.
_LPM_MOST = 128
#: A request with at most so many cached tokens gives way to another that waits, if it shares at least as many with it.
_IN_BATCH = 32
#: The ratio starts at this, falls to this share of its start, in so many decode steps.
_START, _FLOOR, _DECAY_STEPS = 0.7, 0.14, 600
#: After a retraction the ratio leaves room for so many more tokens of each request.
_RETRACT_STEPS = 20


class NewTokenRatio:
    """The share of its allowed output that a running request is expected to need.

    It falls from `start` to a floor, linearly over decode steps, which the caller counts.
    """

    def __init__(self, conservativeness: float) -> None:
        self.start = min(_START * conservativeness, 1.0)
        self.floor = min(self.start * _FLOOR, 1.0)
        self._decay = (self.start - self.floor) / _DECAY_STEPS
        self._from, self._since = self.start, 0

    def at(self, decode_steps: int) -> float:
        """The ratio after so many decode steps in all."""
        return max(self._from - self._decay * (decode_steps - self._since), self.floor)

    def set(self, ratio: float, decode_steps: int) -> None:
        """From now on it falls from `ratio`."""
        self._from, self._since = ratio, decode_steps


class SglangPolicy:
    """Settings are those of SGLang's server (see `SglangScheduler`)."""

    def __init__(self, settings: SglangScheduler, kv_blocks: int) -> None:
        self._max_running = settings.max_num_seqs
        self._chunk = settings.max_num_batched_tokens
        self._max_prefill = settings.max_prefill_tokens
        self._mixes = settings.enable_mixed_chunk
        self._lpm = settings.schedule_policy == "lpm" and settings.enable_prefix_caching
        self._ratio = NewTokenRatio(settings.schedule_conservativeness)
        self._mixed_steps = 0  # steps in which decodes ran beside a prompt; the ratio does not fall in them
        self._full: int | None = None  # running requests while the batch is full: none is admitted until one leaves

    @staticmethod
    def limits(settings: SglangScheduler) -> Limits:
        """Return the limits of the settings."""
        return Limits(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
            max_model_len=settings.max_model_len,
            chunked=True,
            prefix_caching=settings.enable_prefix_caching,
            free_list="append",
            async_scheduling=settings.async_scheduling,
            requeue="back",
        )

    def new_token_ratio(self, view: View) -> float:
        """The ratio that the next step begins with."""
        return self._ratio.at(self._decays(view))

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """A prefill step if there is something to prefill and room for it, else a decode step."""
        if view.waiting or view.prefilling:
            plan = self._prefill(view, pool)
            if plan is not None:
                return plan
        elif not view.running:
            self._ratio.set(self._ratio.start, self._decays(view))
        return self._decode(view, pool)

    def _decays(self, view: View) -> int:
        """Steps so far in which the ratio falls."""
        return view.decode_steps - self._mixed_steps

    # --- prefill

    def _prefill(self, view: View, pool: BlockPool) -> Plan | None:
        running = view.running - len(view.prefilling)
        if not running:
            self._full = None
        if not view.prefilling and self._full is not None:
            return None
        mixed, lacking = (running, _lacking(view, pool)) if self._mixes else (0, 0)
        ratio = self.new_token_ratio(view)
        reserved = sum(ratio * min(_allowed(seq), _CLIP) for seq in _decoding(view))
        step = _PrefillStep(pool, self._max_prefill - mixed, self._chunk - mixed, reserved, lacking)
        for seq in view.prefilling:  # one at most: the request whose prompt the last prefill step cut
            step.go_on(seq)
        for seq in self._in_order(view, pool):
            if len(step.chunks) >= self._max_running - running:
                self._full = running
                break
            if not step.take_in(seq):
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
        """The waiting queue by the longest cached prefix, or as it is.

        Of requests that share a prefix which is not cached yet, only the first keeps its place: the others come last,
        so that it can fill the cache for them.
        """
        if not self._lpm or len(view.waiting) > _LPM_MOST:
            return view.waiting
        size, seen, ranked = pool.block_size, set[int](), []
        for seq in view.waiting:
            cached = size * len(pool.find(seq, (seq.target - 1) // size))
            rank = -cached
            if cached <= _IN_BATCH:
                keys = seq.shared if isinstance(seq, ContentSequence) else ()
                if size * sum(1 for _ in takewhile(seen.__contains__, keys)) >= _IN_BATCH:
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
        lacking = _lacking(view, pool)
        if lacking > pool.free:
            return self._retract(view, pool)
        _grow_decodes(view, pool, lacking)
        return STEADY

    def _retract(self, view: View, pool: BlockPool) -> Plan:
        """Free the blocks of decodes until the others have theirs: of those with the fewest outputs first, of equals of
        the one with the longest prompt. If the last one lacks memory even so, a half computed prompt makes room.

        Then it goes itself, where SGLang asserts that one alone has memory: what is on its way into the batch or out of
        it may hold the rest. No request is left to count, and the ratio goes on as it was."""
        kept = sorted(_decoding(view), key=lambda seq: (-_outputs(seq), seq.prompt_tokens))
        retracted: list[SequenceState] = []
        cut = list(view.prefilling)
        while _lacking_of(kept, pool) > pool.free:
            retracted.append(cut.pop() if len(kept) == 1 and cut else kept.pop())
            pool.release(retracted[-1])
        for seq in kept:
            pool.allocate(seq, seq.computed + 1)
        self._full = None
        if kept:
            room = sum(map(_outputs, kept)) + _RETRACT_STEPS * len(kept)
            self._ratio.set(min(room / sum(seq.max_tokens for seq in kept), 1.0), self._decays(view) + 1)
        return Plan(retracted)


class _PrefillStep:
    """A prefill step being put together, and what it may still take.

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

    def go_on(self, seq: SequenceState) -> None:
        """The next chunk of a prompt that has been begun, for which memory was found when it was taken in. Its output
        is reckoned with from its last chunk on."""
        pool = self._pool
        held = seq.blocks + pool.free - self._spare
        tokens = min(seq.todo, self._chunk, held * pool.block_size - seq.computed)
        if tokens == seq.todo:
            self._reserved += self._output(seq)
        if tokens > 0:
            self._compute(seq, tokens)

    def take_in(self, seq: SequenceState) -> bool:
        """Admit a waiting request, if there is room; False if it is the last one to be looked at."""
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
        """Output tokens to reckon with. The engine cuts what a client asks for to what the pool can hold."""
        return min(_allowed(seq), _CLIP, self._pool.blocks * self._pool.block_size - seq.target - 1)

    def _compute(self, seq: SequenceState, tokens: int, cached: int | None = None) -> None:
        pool = self._pool
        pool.allocate(seq, (seq.computed if cached is None else cached) + tokens)
        self.chunks.append((seq, tokens))
        rounded = pool.blocks_for(tokens) * pool.block_size
        self._inputs -= rounded
        self._chunk -= rounded

    def register(self) -> None:
        """Let later steps find what this one computes."""
        new = {seq.index for seq in self.admitted}
        for seq, tokens in self.chunks:
            self._pool.register(seq, (seq.cached if seq.index in new else seq.computed) + tokens)


def _outputs(seq: SequenceState) -> int:
    """Tokens of output so far, with the one on its way."""
    return seq.target - seq.prompt_tokens


def _allowed(seq: SequenceState) -> int:
    """Tokens of output that the client still allows."""
    return seq.max_tokens - _outputs(seq)


def _decoding(view: View) -> Iterator[SequenceState]:
    """The running requests that decode in the next step, oldest first."""
    return (seq for seq in view.oldest_first() if seq.decoding and seq.todo)


def _lacking(view: View, pool: BlockPool) -> int:
    """Blocks that the decodes of the next step lack."""
    if view.decodes is not None:
        return view.decode_blocks()
    return _lacking_of(_decoding(view), pool)


def _lacking_of(decodes: Iterable[SequenceState], pool: BlockPool) -> int:
    return sum(pool.lacking(seq, seq.computed + 1) for seq in decodes)


def _grow_decodes(view: View, pool: BlockPool, lacking: int) -> None:
    """Give all decodes their blocks, which must be there."""
    if view.decodes is not None:
        pool.take(lacking)
        return
    for seq in _decoding(view):
        pool.allocate(seq, seq.computed + 1)
