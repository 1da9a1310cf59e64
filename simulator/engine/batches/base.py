"""The state of an engine core's batch, behind one interface: what a policy sees of it, and how a plan changes it.

There are two kinds. `lazy.LazyBatch` costs O(changes) a step (`lazy_speculation.SpeculatingBatch` with drafts);
`explicit.ExplicitBatch` loops over the sequences, carries every feature, and is the oracle of the lazy ones. Both
change their state when a step is formed, as the engines do, so that the next one can be formed before the first has
run (asynchronous scheduling); the end of a step only delivers its tokens.
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
    """A step that has been formed: its number in its batch, what it computes, and who gets a last token from it."""

    __slots__ = ("end_ns", "ending", "index", "shape")

    def __init__(self, index: int, shape: BatchShape, ending: Sequence[SequenceState]) -> None:
        self.index = index
        self.shape = shape
        self.ending = ending
        self.end_ns = 0


class TokenLog(Protocol):
    """Log of token times, preemptions and lookups in the prefix cache; see `logs.RequestLog`."""

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None: ...
    def events(self, tokens: bytes) -> None: ...
    def preempted(self, index: int, lost_tokens: int) -> None: ...
    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Settings and parts of a batch.

    `number` is that of the engine core. `outputs` has, by request, the tokens until it ends: for the engine alone, a
    `View` has no such thing. `depth` steps may be under way at once; `window` is the model's sliding window, or 0;
    `requeue` is the place of preempted sequences in the waiting queue. With `keeps` the blocks of a finished sequence
    are kept until `free`.
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
    """A batch, as the replica drives it. It is also the `View` of its policy."""

    number: int  # of the engine core
    pool: BlockPool
    depth: int
    #: Sequences that hold blocks and are not in the batch: their KV is on its way in or out.
    outside: dict[int, SequenceState]
    #: Those of them that wait for blocks of theirs to be loaded from CPU memory.
    parked: dict[int, SequenceState]
    #: Steps that have been formed, and of them those that have delivered their tokens.
    step: int
    completed: int
    #: The paused steps, in order: each by its row, that is by the number of steps formed before it.
    paused: list[int]

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and delivered output tokens of the unfinished sequences."""

    @property
    def unfinished(self) -> int:
        """Sequences waiting or running."""

    def add(self, seq: SequenceState) -> None:
        """Put a new sequence at the end of the waiting queue."""

    def form(self, plan: Plan) -> Step | None:
        """Apply a plan: the state is then that in which the next step can be formed. None if there is nothing to do."""

    def form_steady(self) -> Step | None:
        """Form the next step without asking the policy, if its last plan was `STEADY` and holds on; else None, and
        nothing changes. It holds while nothing waits, prefills or joins and the decodes' blocks are free."""

    def complete(self, step: Step) -> Sequence[SequenceState]:
        """Deliver the tokens of `step`; return the sequences that finished, in the order of their admission."""

    def reserve(self, seq: SequenceState, tokens: int, spare: int = 0, to_completion: bool = False) -> bool:
        """Give a sequence that is not in the batch the blocks of its first `tokens` tokens, found ones among them;
        False, and nothing changes, if then fewer than `spare` were free. With `to_completion` there must be room, too,
        for all that it and the sequences that hold blocks could come to need."""

    def free(self, seq: SequenceState) -> None:
        """Take back the blocks of a sequence that is not in the batch."""

    def park(self, seq: SequenceState, tokens: int) -> None:
        """Take a waiting sequence aside, and give it the blocks of its first `tokens` tokens, which must be free."""

    def unpark(self, seq: SequenceState, tokens: int) -> None:
        """The blocks of its first `tokens` tokens are loaded: let them be found, free them, and put the sequence
        into its place of the waiting queue."""

    def join(self, seq: SequenceState) -> None:
        """Take in a sequence whose KV has arrived from elsewhere, all but that of its last known token: it holds the
        blocks of its `computed` tokens, and decodes from the next step on."""

    def withdraw(self, seq: SequenceState) -> int:
        """Take a sequence out, wherever it is in the batch, when a step is about to be formed; return the output tokens
        that were delivered. Its blocks are free, but those of a parked sequence, which are kept until `free`. Tokens
        that steps under way would bring are dropped."""

    def skip_row(self) -> int:
        """Count a paused step in which nothing is computed; return its row."""

    def check_progress(self) -> None:
        """Raise StalledError if something is unfinished; to be asked when nothing will ever happen again."""

    def close(self) -> None:
        """Record the tokens that unfinished sequences got from the completed steps."""

    def check(self) -> None:
        """Raise AssertionError if a conservation law is broken."""


class BatchBase:
    """Common part of the implementations: the queue, the counts and departures. Each keeps its own running list."""

    def __init__(self, context: BatchContext) -> None:
        self._setup = context
        self.pool, self.log, self.depth = context.pool, context.log, context.depth
        self._outputs = context.outputs
        self._prefixes = context.pool if isinstance(context.pool, PrefixPool) else None
        self.waiting: deque[SequenceState] = deque()
        self.prefilling: list[SequenceState] = []
        self.paused: list[int] = []
        self.step = 0  # number of the next step to be formed
        self.completed = 0  # steps that have delivered their tokens
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
        """Count a sequence among the unfinished ones; it may have got tokens elsewhere."""
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
        """Put a sequence that was waiting before into its place: by arrival, behind what was preempted; a preempted one
        as when it was."""
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
        """Take back the blocks of a finished sequence, or keep them for a transfer."""
        if self._setup.keeps:
            self.outside[seq.index] = seq
        else:
            self.pool.retire(seq)

    def enter(self, seq: SequenceState) -> None:
        """Count a sequence whose KV has arrived among those of the batch."""
        del self.outside[seq.index]
        self.count_in(seq)
        seq.order = self.admissions
        self.admissions += 1
        self.pool.register(seq, seq.computed)

    def foreseen(self, seq: SequenceState) -> bool:
        """Whether the scheduler knows which step brings the last token.

        If not, that is if the model's own end of text comes before the client's limit, asynchronous scheduling has
        formed one step too many by the time it learns.
        """
        return self.depth == 1 or self._outputs[seq.index] == seq.max_tokens

    def requeue(self, seq: SequenceState) -> None:
        """Put a preempted sequence, whose blocks the policy has released, into the waiting queue again."""
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
        """Take a sequence out of the waiting queue; what the prefix cache had of it is computed."""
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
        """Count out a sequence of which `delivered` output tokens were counted."""
        self.known_tokens -= seq.prompt_tokens + delivered

    def check_progress(self) -> None:
        """Raise StalledError if something is unfinished; to be asked when nothing will ever happen again."""
        running = cast(View, self).running
        if running or self.waiting:
            head = self.waiting[0] if self.waiting else None
            raise StalledError(
                f"nothing can be scheduled any more: {running} running, {len(self.waiting)} waiting "
                f"(head: {head}), {self.pool.free} of {self.pool.blocks} blocks free"
            )
