"""Common part of the batches: the waiting queue, counts, preemptions and departures."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from simulator.engine.batches.interface import BatchContext, Step
from simulator.errors import StalledError
from simulator.memory import PrefixPool
from simulator.scheduling import RankedSequence, SequenceState, View

#: Least number of preemptions without a token that counts as a livelock; ten for each unfinished sequence are added.
_FUTILE = 1000

#: Requests are numbered in their order of arrival.
_by_arrival = attrgetter("index")


def _by_rank(seq: RankedSequence) -> tuple[int, ...]:
    """Return the sort key of a sequence by priority, then by arrival."""
    return seq.priority, seq.arrival_ns, seq.index


def _preempted_first(seq: RankedSequence) -> tuple[int, ...]:
    """Return the sort key of a sequence by priority, then by arrival, with preempted ones before all others."""
    return not seq.preemptions, seq.priority, seq.arrival_ns, seq.index


#: Sort keys of the waiting queue, by the place of preempted sequences; else it is in order of arrival.
_RANKS: dict[str, Callable[[Any], Any]] = {"priority": _by_rank, "preempted_first": _preempted_first}


class PreemptionCount:
    """Number of preemptions since the last token, arrival or end, by which livelocks are detected.

    `hopeless` is the last sequence that was preempted though it held all blocks.
    """

    __slots__ = ("count", "hopeless", "known_tokens")

    def __init__(self) -> None:
        self.count = 0
        self.hopeless: SequenceState | None = None
        self.known_tokens = -1

    def add(self, known_tokens: int, unfinished: int) -> None:
        """Count a preemption in a batch with that many known tokens and unfinished sequences.

        Raises:
            StalledError: there were too many without a token between them.
        """
        if known_tokens != self.known_tokens:
            self.count, self.known_tokens = 0, known_tokens
        self.count += 1
        if self.count > _FUTILE + 10 * unfinished:
            raise StalledError(f"{self.count} preemptions, and no token: sequences take each other's blocks in turn")


class BatchBase:
    """Common part of the batches: waiting queue, counts and removals. Each subclass keeps its own running list."""

    def __init__(self, context: BatchContext) -> None:
        self._setup = context
        self.pool, self.depth = context.pool, context.depth
        self._rank = _RANKS.get(context.requeue)
        self._prefixes = context.pool if isinstance(context.pool, PrefixPool) else None
        self.waiting: deque[SequenceState] = deque()
        self.prefilling: list[SequenceState] = []
        self.paused: list[int] = []
        self.step = 0  # number of the next step to be formed
        self.completed = 0  # number of steps that have delivered their tokens
        self.admissions = 0
        self.known_tokens = 0
        self._preemptions = PreemptionCount()
        self.outside: dict[int, SequenceState] = {}
        self.parked: dict[int, SequenceState] = {}

    @property
    def number(self) -> int:
        return self._setup.number

    @property
    def window(self) -> int:
        return self._setup.window

    def add(self, seq: SequenceState) -> None:
        if self._rank is None:
            self.waiting.append(seq)
        else:
            insort(self.waiting, seq, key=self._rank)
        self.count_in(seq)

    def count_in(self, seq: SequenceState) -> None:
        """Count a sequence as unfinished; it may have output tokens of another core."""
        self.known_tokens += seq.target

    def reserve(self, seq: SequenceState, tokens: int, spare: int = 0, to_completion: bool = False) -> bool:
        if to_completion and not self._has_room(seq):
            return False
        pool = self.pool
        if self._prefixes is None:  # no blocks are found
            if (spare and not pool.fits(seq, (), tokens, spare)) or not pool.grow(seq, tokens):
                return False
        else:
            hits = pool.find(seq, tokens // pool.block_size)
            if not pool.fits(seq, hits, tokens, spare):
                return False
            pool.adopt(seq, hits)
            pool.allocate(seq, tokens)
        self.outside[seq.index] = seq
        return True

    def _has_room(self, seq: SequenceState) -> bool:
        others = (*cast(View, self).oldest_first(), *self.outside.values())
        needed = sum(self.pool.demand(each, each.prompt_tokens + each.max_tokens) for each in (seq, *others))
        return needed <= self.pool.blocks

    def form_steady(self) -> Step | None:
        return None

    def free(self, seq: SequenceState) -> None:
        del self.outside[seq.index]
        self.pool.retire(seq)

    def park(self, seq: SequenceState, tokens: int) -> None:
        self.waiting.remove(seq)
        self.parked[seq.index] = seq
        if not self.reserve(seq, tokens):
            raise AssertionError(f"{seq} was parked, and there are no blocks for {tokens} tokens")

    def unpark(self, seq: SequenceState, tokens: int) -> None:
        del self.parked[seq.index], self.outside[seq.index]
        self.pool.register(seq, tokens)
        self.pool.release(seq)
        self.put_back(seq)

    def put_back(self, seq: SequenceState) -> None:
        """Return a parked sequence to the queue: by priority, by arrival after preempted ones, or as at preemption."""
        if seq.preemptions or self._rank is not None:
            self._enqueue_preempted(seq)
            return
        at = 0
        for other in self.waiting:
            if not other.preemptions and other.index > seq.index:
                break
            at += 1
        self.waiting.insert(at, seq)

    def retire(self, seq: SequenceState) -> None:
        """Free the blocks of a finished sequence, or keep them for a transfer."""
        if self._setup.keeps:
            self.outside[seq.index] = seq
        else:
            self.pool.retire(seq)

    def enter(self, seq: SequenceState) -> None:
        """Move a sequence whose KV has arrived from `outside` to the batch."""
        del self.outside[seq.index]
        self.count_in(seq)
        seq.order = self.admissions
        self.admissions += 1
        if self._prefixes is not None:
            self.pool.register(seq, seq.computed)

    def foreseen(self, seq: SequenceState) -> bool:
        """Return whether the scheduler knows beforehand which step is the last one of a sequence.

        If not, that is if the sequence ends before `max_tokens` and the context limit, asynchronous scheduling has
        already formed one step too many when the last token is delivered.
        """
        if self.depth == 1:
            return True
        output = self._setup.outputs[seq.index]
        return output == seq.max_tokens or seq.prompt_tokens + output >= self._setup.max_model_len

    def requeue(self, seq: SequenceState) -> None:
        """Return a preempted sequence, whose blocks the policy has released, to the waiting queue."""
        if self._setup.detect_livelock:
            self._preemptions.add(self.known_tokens, cast(Any, self).unfinished)
        self._setup.log.preempted(seq.index, seq.computed)
        seq.computed = 0
        seq.decoding = False
        seq.preemptions += 1
        self._enqueue_preempted(seq)

    def _enqueue_preempted(self, seq: SequenceState) -> None:
        if self._rank is not None:
            insort(self.waiting, seq, key=self._rank)
        elif self._setup.requeue == "front":
            self.waiting.appendleft(seq)
        elif self._setup.requeue == "back":
            self.waiting.append(seq)
        else:
            insort(self.waiting, seq, key=_by_arrival)

    def give_up(self, seq: SequenceState) -> None:
        """Note that a sequence was preempted although no other one runs."""
        if self._setup.detect_livelock and not self.outside:
            self._preemptions.hopeless = seq

    def admit(self, seq: SequenceState) -> None:
        """Remove an admitted sequence from the waiting queue; its cached tokens count as computed.

        Raises:
            StalledError: the sequence needs more than all blocks.
        """
        if seq is self._preemptions.hopeless:
            blocks = self.pool.blocks
            raise StalledError(f"{seq} needs more KV blocks than there are ({blocks}), and is admitted again and again")
        waiting = self.waiting
        if waiting and waiting[0] is seq:
            waiting.popleft()
        elif seq in waiting:
            waiting.remove(seq)
        else:
            raise AssertionError(f"{seq} was admitted, and is not waiting")
        seq.computed = seq.cached
        if self._prefixes is not None:
            self._setup.log.looked_up(seq.index, seq.target, seq.cached)
        seq.order = self.admissions
        self.admissions += 1

    def depart(self, seq: SequenceState, delivered: int) -> None:
        """Subtract the tokens of a sequence that leaves, with `delivered` output tokens, from the counts."""
        self.known_tokens -= seq.prompt_tokens + delivered

    def check_progress(self) -> None:
        """Raise StalledError if a sequence is unfinished; for the end of a run, when no event is left."""
        running = cast(View, self).running
        if running or self.waiting:
            head = self.waiting[0] if self.waiting else None
            raise StalledError(
                f"nothing can be scheduled any more: {running} running, {len(self.waiting)} waiting "
                f"(head: {head}), {self.pool.free} of {self.pool.blocks} blocks free"
            )
