"""Interface of an engine core's batch: its state for the policy, and the changes by a plan.

There are two kinds. `lazy.LazyBatch` costs O(changes) a step (`lazy_speculation.SpeculatingBatch` with drafts);
`explicit.ExplicitBatch` loops over the sequences, supports every feature, and is the reference in tests of the lazy
ones. Both change their state when a step is formed, as the engines do, so that the next one can be formed before the
first has run (asynchronous scheduling); the end of a step only delivers its tokens.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol, cast

from cost_models.shape import BatchShape
from simulator.errors import StalledError
from simulator.memory import BlockPool, PrefixPool
from simulator.scheduling import Plan, Requeue, SequenceState, View

#: Requests are numbered in their order of arrival.
_by_arrival = attrgetter("index")


class Step:
    """A step that has been formed: its number in its batch, its shape, and the sequences that end with it."""

    __slots__ = ("end_ns", "ending", "index", "shape")

    def __init__(self, index: int, shape: BatchShape, ending: Sequence[SequenceState]) -> None:
        self.index = index
        self.shape = shape
        self.ending = ending
        self.end_ns = 0


class TokenLog(Protocol):
    """Log of token times, preemptions and lookups in the prefix cache, such as `logs.RequestLog`."""

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None: ...
    def events(self, tokens: bytes) -> None: ...
    def preempted(self, index: int, lost_tokens: int) -> None: ...
    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Settings and parts of a batch.

    `number` is that of the engine core. `outputs` has the number of output tokens of each request, which policies do
    not get. `depth` steps may be in flight at once; `window` is the model's sliding window, or 0; `requeue` is the
    position of preempted sequences in the waiting queue. With `keeps` the blocks of a finished sequence are kept until
    `free`.
    """

    number: int
    pool: BlockPool
    log: TokenLog
    outputs: Sequence[int]
    depth: int
    window: int = 0
    requeue: Requeue = "front"
    keeps: bool = False


class Batch(View, Protocol):
    """A batch, for its engine core. It is also the `View` of its policy."""

    number: int  # of the engine core
    pool: BlockPool
    depth: int
    #: Sequences that hold blocks but are not in the batch, since their KV is being transferred.
    outside: dict[int, SequenceState]
    #: Those of them whose blocks are being loaded from CPU memory.
    parked: dict[int, SequenceState]
    #: Number of steps that have been formed, and of those that have delivered their tokens.
    step: int
    completed: int
    #: Rows of the paused steps, in order; a row is the number of steps formed before it.
    paused: list[int]

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and delivered output tokens of the unfinished sequences."""

    @property
    def unfinished(self) -> int:
        """Number of sequences that wait or run."""

    def add(self, seq: SequenceState) -> None:
        """Put a new sequence at the end of the waiting queue."""

    def form(self, plan: Plan) -> Step | None:
        """Apply a plan and return its step, after which the next one can be formed; None if the plan has no work."""

    def form_steady(self) -> Step | None:
        """Form the next step without the policy if its last plan, `STEADY`, is still valid; else return None.

        It is valid while no sequence waits, prefills or joins and the decodes' blocks are free.
        """

    def complete(self, step: Step) -> Sequence[SequenceState]:
        """Deliver the tokens of `step`; return the sequences that finished, in the order of their admission."""

    def reserve(self, seq: SequenceState, tokens: int, spare: int = 0, to_completion: bool = False) -> bool:
        """Allocate the blocks of the first `tokens` tokens of a sequence outside the batch, with cached ones.

        Return False, without a change, if fewer than `spare` blocks would be free then. With `to_completion` the pool
        must also have the blocks to completion of this sequence and of all that hold blocks.
        """

    def free(self, seq: SequenceState) -> None:
        """Free the blocks of a sequence that is not in the batch."""

    def park(self, seq: SequenceState, tokens: int) -> None:
        """Remove a sequence from the waiting queue, and allocate the blocks of its first `tokens` tokens."""

    def unpark(self, seq: SequenceState, tokens: int) -> None:
        """Register the loaded blocks of the first `tokens` tokens, free them, and return the sequence to the queue."""

    def join(self, seq: SequenceState) -> None:
        """Add a sequence to the running list whose KV has been transferred, except that of its last known token.

        It holds the blocks of its `computed` tokens, and decodes from the next step on.
        """

    def withdraw(self, seq: SequenceState) -> int:
        """Remove a sequence from the batch before a step is formed; return the number of its delivered output tokens.

        Its blocks are freed, except those of a parked sequence, which are kept until `free`. Tokens of steps in flight
        are dropped.
        """

    def skip_row(self) -> int:
        """Count a paused step without work; return its row."""

    def check_progress(self) -> None:
        """Raise StalledError if a sequence is unfinished; for the end of a run, when no event is left."""

    def close(self) -> None:
        """Record the tokens of unfinished sequences from the completed steps."""

    def check(self) -> None:
        """Raise AssertionError if a conservation law is broken."""


class BatchBase:
    """Common part of the batches: waiting queue, counts and removals. Each subclass keeps its own running list."""

    def __init__(self, context: BatchContext) -> None:
        self._setup = context
        self.pool, self.log, self.depth = context.pool, context.log, context.depth
        self._outputs = context.outputs
        self._prefixes = context.pool if isinstance(context.pool, PrefixPool) else None
        self.waiting: deque[SequenceState] = deque()
        self.prefilling: list[SequenceState] = []
        self.paused: list[int] = []
        self.step = 0  # number of the next step to be formed
        self.completed = 0  # number of steps that have delivered their tokens
        self.admissions = 0
        self.known_tokens = 0
        self.outside: dict[int, SequenceState] = {}
        self.parked: dict[int, SequenceState] = {}

    @property
    def number(self) -> int:
        return self._setup.number

    @property
    def window(self) -> int:
        return self._setup.window

    def add(self, seq: SequenceState) -> None:
        self.waiting.append(seq)
        self.count_in(seq)

    def count_in(self, seq: SequenceState) -> None:
        """Count a sequence as unfinished; it may have output tokens of another core."""
        self.known_tokens += seq.target

    def reserve(self, seq: SequenceState, tokens: int, spare: int = 0, to_completion: bool = False) -> bool:
        if to_completion and not self._has_room(seq):
            return False
        hits = self.pool.find(seq, tokens // self.pool.block_size)
        if not self.pool.fits(seq, hits, tokens, spare):
            return False
        self.pool.adopt(seq, hits)
        self.pool.allocate(seq, tokens)
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
        """Return a parked sequence to the queue: by arrival, after preempted ones; a preempted one as at preemption."""
        if seq.preemptions:
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
        self.pool.register(seq, seq.computed)

    def foreseen(self, seq: SequenceState) -> bool:
        """Return whether the scheduler knows beforehand which step is the last one of a sequence.

        If not, that is if the sequence ends before `max_tokens`, asynchronous scheduling has already formed one step
        too many when the last token is delivered.
        """
        return self.depth == 1 or self._outputs[seq.index] == seq.max_tokens

    def requeue(self, seq: SequenceState) -> None:
        """Return a preempted sequence, whose blocks the policy has released, to the waiting queue."""
        self.log.preempted(seq.index, seq.computed)
        seq.computed = 0
        seq.decoding = False
        seq.preemptions += 1
        self._enqueue_preempted(seq)

    def _enqueue_preempted(self, seq: SequenceState) -> None:
        if self._setup.requeue == "front":
            self.waiting.appendleft(seq)
        elif self._setup.requeue == "back":
            self.waiting.append(seq)
        else:
            insort(self.waiting, seq, key=_by_arrival)

    def admit(self, seq: SequenceState) -> None:
        """Remove an admitted sequence from the waiting queue; its cached tokens count as computed."""
        waiting = self.waiting
        if waiting and waiting[0] is seq:
            waiting.popleft()
        elif seq in waiting:
            waiting.remove(seq)
        else:
            raise AssertionError(f"{seq} was admitted, and is not waiting")
        seq.computed = seq.cached
        if self._prefixes is not None:
            self.log.looked_up(seq.index, seq.target, seq.cached)
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
