"""The batch of the complete vLLM policy: outputs in flight, drafts, priorities, and the content of prompts.

Like the plain batch it loops over what a step schedules. Its books are those of vLLM: `target` runs ahead of `known` by
what scheduled steps will deliver, rejected drafts take `computed` back, and what was in flight at a preemption is
delivered all the same but touches no counter.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from cost_models.shape import BatchShape
from simulator.engine.batches.base import BatchBase, Step
from simulator.errors import StalledError
from simulator.memory import BlockPool
from simulator.scheduling import Plan, TrackedSequence

_EMPTY = BatchShape(0, 0)
_entry = tuple.__new__  # a third of the time of calling the class
#: More preemptions than this, and ten for each unfinished sequence, without a token between them, go on for ever.
_FUTILE = 1000


class Entry(NamedTuple):
    """What a step computes of one sequence: `tokens` on top of `computed`, `drafts` of them drafts.

    `prefill`: it has been admitted in this step, or its last chunk did not reach the end.
    """

    seq: TrackedSequence
    tokens: int
    computed: int
    drafts: int
    emits: bool
    prefill: bool
    preemptions: int  # of the sequence by then: if there are more at the step's end, its output is stale


class ExactStep(Step):
    """A step that also knows what it schedules, and after its end what it brought."""

    __slots__ = ("accepted", "context", "emitted", "entries", "passes", "plan", "proposed", "total")

    def __init__(self, index: int, plan: Plan, entries: list[Entry], total: int, context: int, passes: int) -> None:
        super().__init__(index, _EMPTY, ())
        self.plan = plan
        self.entries = entries
        self.total = total  # tokens
        self.context = context  # the keys that they attend to, as a recording's time law counts them
        self.passes = passes  # of the drafter, after it
        self.emitted: list[tuple[TrackedSequence, int]] = []
        self.accepted: list[tuple[TrackedSequence, int, int]] = []
        self.proposed: list[tuple[TrackedSequence, int]] = []


class Log(Protocol):
    """Where token times go; see `log.RequestLog`."""

    def segment(self, index: int, replica: int, first_step: int, last_step: int) -> None: ...
    def events(self, tokens: bytes) -> None: ...
    def preempted(self, index: int, lost_tokens: int) -> None: ...
    def looked_up(self, index: int, queried_tokens: int, cached_tokens: int) -> None: ...


class Speculator(Protocol):
    """Says how many drafts there are, and what becomes of them."""

    def length(self, running: int) -> tuple[int, int]:
        """Drafts that each sequence is to get after the step that is formed now, with so many running ones, and the
        passes of the drafter that they take."""

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """How many of the scheduled drafts of a sequence the step accepts."""

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """How many drafts are proposed, at the end of a synchronous step, for the sequence's next one."""


class ExactBatch(BatchBase):
    """See the module's text.

    `detect_livelock` raises StalledError for what is as good as a deadlock: a sequence that had all blocks to itself,
    gave way for want of more, and is admitted again; or sequences that take each other's blocks in turn, so that none
    of them ever gets a token. Both need admission without reservation.
    """

    waiting: deque[TrackedSequence]  # type: ignore[assignment]

    def __init__(
        self,
        number: int,
        pool: BlockPool,
        log: Log,
        outputs: Sequence[int],
        depth: int,
        window: int = 0,
        *,
        by_priority: bool = False,
        preempted_first: bool = False,
        detect_livelock: bool = False,
    ) -> None:
        super().__init__(number, pool, log, outputs, depth, window)  # type: ignore[arg-type]
        self.order: list[TrackedSequence] = []
        self._by_priority = by_priority
        self._rank = _preempted_first if preempted_first else _by_rank
        self.speculator: Speculator | None = None
        self._detect_livelock = detect_livelock
        self._hopeless: TrackedSequence | None = None
        self._futile = 0  # preemptions since the last token
        # Blocks that are known to be full only when tokens are delivered; else all are registered at schedule time.
        self._late_blocks = depth == 2

    def speculate(self, speculator: Speculator) -> None:
        """From the first step on, let steps have drafts, and bring several tokens."""
        self.speculator = speculator
        self._late_blocks = True

    @property
    def running(self) -> int:
        return len(self.order)

    @property
    def unfinished(self) -> int:
        return len(self.order) + len(self.waiting)

    # --- the replica's verbs

    def add(self, seq: TrackedSequence) -> None:  # type: ignore[override]
        if self._by_priority:
            insort(self.waiting, seq, key=self._rank)
        else:
            self.waiting.append(seq)
        self.count_in(seq)

    def put_back(self, seq: TrackedSequence) -> None:  # type: ignore[override]
        if self._by_priority:
            insort(self.waiting, seq, key=self._rank)
        else:
            super().put_back(seq)

    def join(self, seq: TrackedSequence) -> None:
        self.enter(seq)
        self.order.append(seq)

    def skip_row(self) -> int:
        raise AssertionError("the exact batch has a step in every row")

    def form(self, plan: Plan) -> ExactStep | None:
        """Apply a plan: the state is then that in which the next step can be formed. None if there is nothing to do."""
        step = self.advance(plan)
        if step is not None:
            step.shape = self._shape(step)
        return step

    def advance(self, plan: Plan) -> ExactStep | None:
        """`form`, without the shape that cost models ask for."""
        work = cast("Sequence[tuple[TrackedSequence, int]]", plan.work)
        if plan.preempted:
            for seq in plan.preempted:
                self._preempt(cast(TrackedSequence, seq))
            if self._detect_livelock and not self.order and not work and not self.outside:
                self._hopeless = cast(TrackedSequence, plan.preempted[-1])
        elif not work:
            return None
        for seq in cast("Sequence[TrackedSequence]", plan.admitted):
            self._take_in(seq)
        entries: list[Entry] = []
        total = context = length = passes = 0
        if self.speculator is not None:
            length, passes = self.speculator.length(len(self.order))
        placeholders = length if self.depth == 2 else 0
        for each, tokens in work:
            computed, target, prefill = each.computed, each.target, each.in_prefill
            each.computed = end = computed + tokens
            each.in_flight += tokens
            total += tokens
            context += end
            if end < target:
                each.in_prefill = True
                entries.append(_entry(Entry, (each, tokens, computed, 0, False, prefill, each.preemptions)))
                continue
            each.in_prefill = False
            each.target = end + 1
            each.drafts = placeholders
            entries.append(_entry(Entry, (each, tokens, computed, end - target, True, prefill, each.preemptions)))
        step = ExactStep(self.step, plan, entries, total, context, passes)
        self.step += 1
        return step

    def complete(self, step: Step) -> Sequence[TrackedSequence]:
        """Deliver the tokens of `step`; return the sequences that finished, in the order of their admission."""
        assert isinstance(step, ExactStep)
        self.completed += 1
        finished = []
        for seq, tokens, _, drafts, emits, prefill, preemptions in step.entries:
            if seq.finished:
                continue
            stale = preemptions != seq.preemptions
            if not stale:
                seq.in_flight -= tokens
            if emits and self._deliver(seq, step, drafts, prefill, stale):
                finished.append(seq)
        step.ending = finished
        return finished

    def _deliver(self, seq: TrackedSequence, step: ExactStep, drafts: int, padded: bool, stale: bool) -> bool:
        """Hand over the tokens of one entry; True if that was the end of the request. Drafts of a sequence that was
        just admitted are `padded`."""
        number, tokens = step.index, 1
        left = seq.prompt_tokens + self._outputs[seq.index] - seq.known
        if drafts:
            tokens = self._verify(seq, step, drafts, 0 if padded else None, left, stale)
        seq.known += tokens
        if stale:
            seq.target = seq.known
        elif self._late_blocks and self._prefixes is not None:
            self._prefixes.register(seq, min(seq.computed - seq.in_flight, seq.known - 1))
        self._futile = 0
        step.emitted.append((seq, tokens))
        self.unfinished_output_tokens += tokens
        if seq.last_step != number - 1:
            self._record(seq)
            seq.first_step = number
        seq.last_step = number
        if self.speculator is not None:
            seq.events.append(tokens)
        if tokens == left:
            self._finish(seq)
            return True
        if self.speculator is not None and self.depth == 1:
            seq.drafts = self.speculator.proposed(number, seq)
            step.proposed.append((seq, seq.drafts))
        return False

    def _verify(
        self, seq: TrackedSequence, step: ExactStep, drafts: int, accepted: int | None, left: int, stale: bool
    ) -> int:
        """Take back what the rejected drafts had counted for; the tokens that the request gets."""
        assert self.speculator is not None
        if accepted is None:
            accepted = self.speculator.accepted(step.index, seq, drafts)
        step.accepted.append((seq, drafts, accepted))
        tokens = min(accepted + 1, left)
        if not stale:
            seq.computed -= drafts - accepted
            seq.target -= drafts + 1 - tokens
        return tokens

    def close(self) -> None:
        """Record the tokens that unfinished sequences got from the completed steps."""
        parked = cast("list[TrackedSequence]", [*self.parked.values()])
        for seq in sorted([*self.order, *self.waiting, *parked], key=lambda seq: seq.index):
            self._record(seq)

    def check(self) -> None:
        """Raise AssertionError if a conservation law is broken."""
        self.pool.check([*self.order, *self.waiting, *self.outside.values()])
        assert all(seq.blocks >= self.pool.blocks_for(seq.computed) for seq in self.order)

    # --- parts

    def _take_in(self, seq: TrackedSequence) -> None:
        if seq is self._hopeless:
            raise StalledError(
                f"{seq} needs more KV blocks than there are ({self.pool.blocks}), and is admitted for ever"
            )
        self.admit(seq)
        self.order.append(seq)
        seq.in_prefill = True

    def _preempt(self, seq: TrackedSequence) -> None:
        self.order.remove(seq)
        self.log.preempted(seq.index, seq.computed)
        seq.computed = seq.drafts = seq.in_flight = 0
        seq.target = seq.known
        seq.in_prefill = False
        seq.preemptions += 1
        self._futile += 1
        if self._detect_livelock and self._futile > _FUTILE + 10 * self.unfinished:
            raise StalledError(f"{self._futile} preemptions, and no token: sequences take each other's blocks in turn")
        if self._by_priority:
            insort(self.waiting, seq, key=self._rank)
        else:
            self.waiting.appendleft(seq)

    def _finish(self, seq: TrackedSequence) -> None:
        seq.finished = True
        self._record(seq)
        self.depart(seq)
        if seq in self.order:
            self.order.remove(seq)
            self.part(seq)
        else:  # it was preempted while its last token was on its way, and holds nothing
            self.waiting.remove(seq)

    def _record(self, seq: TrackedSequence) -> None:
        if seq.first_step >= 0:
            self.log.segment(seq.index, self.number, seq.first_step, seq.last_step)
            if self.speculator is not None:
                self.log.events(bytes(seq.events))
                seq.events.clear()

    def _shape(self, step: ExactStep) -> BatchShape:
        """A decode's drafts attend to its keys and, causally, to each other: the keys are read once for all of them."""
        window, contexts, chunks, sampled, verified = self.window, [], [], 0, 0
        for _, tokens, computed, drafts, emits, prefill, _ in step.entries:
            sampled += emits
            if drafts or (tokens == 1 and not prefill):  # what is padded with drafts is computed as a decode, too
                contexts.append(computed + tokens)
                verified += drafts
            else:
                chunks.append((tokens, computed))
        return BatchShape(
            decodes=len(contexts),
            decode_context=sum(contexts),
            decode_window_context=sum([min(context, window) for context in contexts]) if window else 0,
            chunks=tuple(chunks),
            new_requests=sum(not seq.preemptions for seq in step.plan.admitted),
            sampled=sampled,
            draft_tokens=verified,
            proposed=step.passes if sampled else 0,
        )


def _by_rank(seq: TrackedSequence) -> tuple[int, ...]:
    return seq.priority, seq.arrival_ns, seq.index


def _preempted_first(seq: TrackedSequence) -> tuple[int, ...]:
    return not seq.preemptions, seq.priority, seq.arrival_ns, seq.index
