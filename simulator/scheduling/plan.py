"""The contract of batch policies: what they see, and what they answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from simulator.memory import BlockPool
from simulator.scheduling.sequence import SequenceState


class Plan(NamedTuple):
    """The next step, as changes: every running decode that is not named here advances by one token."""

    #: Running sequences that lose their blocks and go back to the waiting queue (to its front, unless the policy's
    #: `Limits` say otherwise), in this order.
    preempted: Sequence[SequenceState] = ()
    #: Sequences that leave the waiting queue, in the order in which they join the running list; each has a chunk.
    admitted: Sequence[SequenceState] = ()
    #: (sequence, tokens): prefill work, of running sequences first, then of admitted ones.
    chunks: Sequence[tuple[SequenceState, int]] = ()
    #: Running decodes that do not advance in this step.
    held: Sequence[SequenceState] = ()
    #: All work of the step, in the scheduler's order, from a policy that names the decodes, too; then `chunks` and
    #: `held` are empty. Only the explicit batch takes such a plan.
    work: Sequence[tuple[SequenceState, int]] | None = None
    #: All running decodes stand still: a step of chunks alone. It costs O(changes), too, which holding each would not.
    paused: bool = False
    #: (rows, tokens): the step takes as long as that many rows of that many tokens each, whatever it computes.
    padded: tuple[int, int] | None = None


#: Every running decode advances and nothing else happens. A policy that returns this very object promises the same
#: answer for as long as nothing waits, prefills or ends and the decodes' blocks suffice: the engine need not ask.
STEADY = Plan()


class View(Protocol):
    """The state that a policy may read, its sequences included. Beside calling the pool's verbs, it changes nothing."""

    @property
    def waiting(self) -> deque[SequenceState]:
        """In order of arrival, but for what was preempted; the head is entry 0."""

    @property
    def prefilling(self) -> list[SequenceState]:
        """Running sequences that are not decoding, oldest first."""

    @property
    def decodes(self) -> int | None:
        """Running decodes that advance by default, or None where the view keeps no totals of them."""

    @property
    def decode_tokens(self) -> int:
        """Tokens that they compute by default: one each, and with speculation their drafts (with totals only)."""

    @property
    def running(self) -> int:
        """Running sequences: decoding, prefilling, and those whose last token is on its way."""

    @property
    def admissions(self) -> int:
        """Number of sequences that have joined the running ones so far, from the queue or from elsewhere."""

    @property
    def prefilling_last(self) -> bool:
        """True if every prefilling sequence was admitted after every decoding one (with totals only)."""

    @property
    def decode_steps(self) -> int:
        """Number of steps formed, not counting those in which decodes were paused."""

    def decode_blocks(self) -> int:
        """Blocks that the running decodes lack, together, for their next token (with totals only)."""

    def oldest_first(self) -> Iterator[SequenceState]:
        """The running sequences in order of admission, up to date. O(running) where the view keeps totals."""

    @property
    def outside(self) -> Mapping[int, SequenceState]:
        """By request: sequences that hold blocks and are not in the batch, since their KV is on its way in or out."""


class Policy(Protocol):
    """A batch policy: deterministic, and without a clock.

    What it keeps from call to call follows from its calls and from `View.decode_steps` alone: it is not called for
    steps that the engine takes in one go, after `STEADY`, and must answer as if it had been.

    `schedule` allocates, through the pool, the blocks of every token that its plan computes (the decodes' included) and
    releases those of every sequence that it preempts. A policy class in the table of policies is made of its settings
    and the usable KV blocks of an engine core, and has a static method `limits(settings)` that returns their `Limits`.
    """

    def schedule(self, view: View, pool: BlockPool) -> Plan:
        """The plan of the next step."""
