"""Interface of an engine core's batch: its state for the policy, and the changes by a plan.

There are two kinds. `lazy.LazyBatch` costs O(changes) a step (`lazy_speculation.SpeculatingBatch` with drafts);
`explicit.ExplicitBatch` loops over the sequences, supports every feature, and is the reference in tests of the lazy
ones. Both change their state when a step is formed, as the engines do, so that the next one can be formed before the
first has run (asynchronous scheduling); the end of a step only delivers its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from cost_models.shape import BatchShape
from simulator.memory import BlockPool
from simulator.scheduling import NO_CAP, Plan, Requeue, SequenceState, View


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


class BatchContext(NamedTuple):
    """Settings and parts of a batch.

    `number` is that of the engine core. `outputs` has the number of output tokens of each request, which policies do
    not get. `depth` steps may be in flight at once; `window` is the model's sliding window, or 0; `requeue` is the
    position of preempted sequences in the waiting queue. With `keeps` the blocks of a finished sequence are kept until
    `free`. With `detect_livelock` StalledError is raised for a livelock: sequences that preempt each other in turn, so
    that none of them gets a token; or a sequence that held all blocks, was preempted since it needed more, and is
    admitted again. Both need admission without reservation.
    """

    number: int
    pool: BlockPool
    log: TokenLog
    outputs: Sequence[int]
    depth: int
    window: int = 0
    requeue: Requeue = "front"
    keeps: bool = False
    detect_livelock: bool = False
    max_model_len: int = NO_CAP


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
