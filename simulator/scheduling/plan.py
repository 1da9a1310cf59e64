"""Interface of batch policies: the state that they read, and the plan that they return."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from simulator.memory import BlockPool
from simulator.scheduling.sequence import SequenceState


class Plan(NamedTuple):
    """The next step, as changes: every running decode that is not listed here advances by one token."""

    #: Running sequences that lose their blocks and return to the waiting queue, in this order; their position is
    #: `Limits.requeue`.
    preempted: Sequence[SequenceState] = ()
    #: Sequences that leave the waiting queue, in the order in which they join the running list; each has a chunk.
    admitted: Sequence[SequenceState] = ()
    #: (sequence, tokens): prefill chunks, those of running sequences first, then those of admitted ones.
    chunks: Sequence[tuple[SequenceState, int]] = ()
    #: Running decodes that do not advance in this step.
    held: Sequence[SequenceState] = ()
    #: (sequence, tokens): all work of the step, in the scheduler's order, from a policy that lists the decodes, too;
    #: then `chunks` and `held` are empty. Only the explicit batch accepts such a plan.
    work: Sequence[tuple[SequenceState, int]] | None = None
    #: Whether no running decode advances: a step of chunks only. This is O(changes), while listing all in `held` is
    #: not.
    paused: bool = False
    #: (rows, tokens): the step costs as much as this number of rows of this number of tokens each, instead of its work.
    padded: tuple[int, int] | None = None


#: A plan in which every running decode advances, without other changes. A policy that returns this object would return
#: it again as long as no sequence waits, prefills or ends and the decodes' blocks suffice, so the engine does not call
#: it for such steps.
STEADY = Plan()


class View(Protocol):
    """The state that a policy may read, including its sequences. A policy changes only the pool, by its methods."""

    @property
    def waiting(self) -> deque[SequenceState]:
        """Waiting sequences in order of arrival, except preempted ones; the head is entry 0."""

    @property
    def prefilling(self) -> list[SequenceState]:
        """Running sequences that are not decoding, oldest first."""

    @property
    def decodes(self) -> int | None:
        """Number of running decodes that advance by default, or None if the view keeps no totals."""

    @property
    def decode_tokens(self) -> int:
        """Tokens that the decodes compute by default: one each and, if speculating, their drafts (with totals only)."""

    @property
    def running(self) -> int:
        """Number of running sequences: decoding, prefilling, and those whose last token is in flight."""

    @property
    def admissions(self) -> int:
        """Number of sequences that have joined the running list so far, from the queue or by a KV transfer."""

    @property
    def prefilling_last(self) -> bool:
        """Whether every prefilling sequence was admitted after every decoding one (with totals only)."""

    @property
    def decode_steps(self) -> int:
        """Number of steps formed, not counting those in which decodes were paused."""

    def decode_blocks(self) -> int:
        """Return the number of blocks that all running decodes lack for their next token (with totals only)."""

    def oldest_first(self) -> Iterator[SequenceState]:
        """Return the running sequences in order of admission, with current values; O(running) with totals."""

    @property
    def outside(self) -> Mapping[int, SequenceState]:
        """Sequences, by request, that hold blocks outside the batch, since their KV is being transferred."""


class Policy(Protocol):
    """A batch policy: deterministic, and without a clock.

    Its state between calls depends only on the calls and on `View.decode_steps`. The engine does not call it for steps
    that it coalesces after `STEADY`, and its later plans must be the same as if it had been called.

    `schedule` allocates, through the pool, the blocks of every token that its plan computes (those of decodes, too) and
    releases those of every sequence that it preempts. A policy class in the table of policies takes its settings and
    the usable KV blocks of an engine core, and has a static method `limits(settings)` that returns their `Limits`.
    """

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """Return the plan of the next step."""
