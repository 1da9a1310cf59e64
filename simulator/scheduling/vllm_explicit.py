"""The complete vLLM V1 policy (`vllm/v1/core/sched/scheduler.py`): the rule itself, with every setting.

The running list first, in its order, then the waiting queue, head first, unless something was preempted: as in
`scheduling.vllm`, which is the short way of the plain case. Beyond it: prefix caching, priorities, adaptive thresholds,
caps on active sequences, prefill intervals, and the look-ahead, drafts and padding of speculative decoding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from simulator.memory import BlockPool, PrefixPool
from simulator.scheduling.plan import Plan
from simulator.scheduling.sequence import TrackedSequence
from simulator.scheduling.setup import NO_CAP, PolicySetup
from simulator.scheduling.vllm_settings import vllm_limits


class FullView(Protocol):
    """The state that this policy reads."""

    @property
    def waiting(self) -> deque[TrackedSequence]:
        """The waiting queue, in the order in which it is served."""

    @property
    def order(self) -> Sequence[TrackedSequence]:
        """The running list, in order of admission."""


class _Draft:
    """A plan in the making."""

    __slots__ = ("admitted", "at", "budget", "cap", "order", "preempted", "prefilled", "stopped", "work")

    def __init__(self, order: Sequence[TrackedSequence], budget: int, cap: int) -> None:
        self.order = order
        self.at = 0  # position of the scan in `order`
        self.budget = budget
        self.cap = cap
        self.work: list[tuple[TrackedSequence, int]] = []
        self.admitted: list[TrackedSequence] = []
        self.preempted: list[TrackedSequence] = []
        self.prefilled = False  # a running prefill was scheduled, even if it has left the step as a victim since
        self.stopped = False


class _Rules(NamedTuple):
    """The settings of the policy."""

    budget: int
    max_running: int
    chunked: bool
    threshold: int
    adaptive: bool
    reserve: bool
    watermark: int
    priority: bool
    least_computed: bool
    max_partial: int | None
    interval: int
    max_model_len: int


class _Drafts(NamedTuple):
    """The drafts of a sequence in a step, and what they ask of the scheduler; see `Speculation`."""

    k: int = 0
    lookahead: int = 0
    surcharge: int = 0
    next_token: int = 0


class ExplicitVllmPolicy:
    """vLLM's scheduler with a look at each sequence in each step. Its only state is that of the prefill interval.

    `passes` counts the steps of the ranks that step together with this one. They prefill in the same steps, those whose
    number the interval divides; an engine by itself counts from its last prefill.
    """

    def __init__(self, setup: PolicySetup) -> None:
        settings, speculation = setup.settings, setup.speculation
        limits = vllm_limits(settings)
        self._rules = _Rules(
            limits.max_num_batched_tokens,
            limits.max_running,
            settings.enable_chunked_prefill,
            settings.long_prefill_token_threshold,
            settings.long_prefill_token_threshold_adaptive,
            settings.scheduler_reserve_full_isl,
            limits.spare_blocks(setup.kv_blocks),
            settings.scheduling_policy == "priority",
            settings.preemption_victim == "least_computed",
            settings.max_num_partial_prefills,
            settings.prefill_schedule_interval,
            setup.max_model_len,
        )
        self._drafts = _Drafts()
        if speculation is not None:
            sizes = (speculation.k, speculation.lookahead, speculation.surcharge, speculation.next_token)
            self._drafts = _Drafts(*sizes)
        self._passes = setup.passes
        self._calls = 0
        self._last_prefill: int | None = None  # the number of the call
        self._left = False

    def schedule(self, view: FullView, pool: BlockPool) -> Plan:
        """Running sequences, then waiting ones."""
        order, waiting = view.order, view.waiting
        self._calls += bool(order or waiting)  # with nothing unfinished, vLLM's scheduler is not called
        draft = _Draft(order, self._rules.budget, self._cap(len(order) + len(waiting)))
        held = self._rules.interval > 1 and self._is_held(view)
        self._scan(draft, pool, held)
        if waiting and not draft.preempted and not draft.stopped:
            self._admit(draft, waiting, pool, held)
        if self._rules.interval > 1:
            self._note_prefill(draft, view, held)
        return Plan(draft.preempted, draft.admitted, work=draft.work)

    # --- running sequences

    def _scan(self, draft: _Draft, pool: BlockPool, held: bool) -> None:
        prefixes = pool if isinstance(pool, PrefixPool) else None
        surcharge, lookahead, next_token = self._drafts.surcharge, self._drafts.lookahead, self._drafts.next_token
        limit, cap, size, schedule = self._rules.max_model_len, draft.cap, pool.block_size, draft.work.append
        order, at, budget, intervals = draft.order, 0, draft.budget, self._rules.interval > 1
        while at < len(order) and budget > surcharge:
            seq = order[at]
            at += 1
            computed, target, known = seq.computed, seq.target, seq.known
            if target > known and computed + 2 - target + known >= seq.prompt_tokens + seq.max_tokens:
                continue  # its last token is on its way, even if all drafts fail
            tokens = target + seq.drafts - computed
            if tokens > 1:
                tokens = min(tokens, cap, budget - surcharge)
            if tokens >= limit - computed:
                tokens = limit - computed - 1
            if tokens <= 0 or (held and not seq.decoding):
                continue
            end = computed + tokens
            room = min(end + lookahead, limit) if lookahead else end
            if room > seq.blocks * size and not pool.grow(seq, room):
                draft.at, draft.budget = at, budget
                served = self._make_room(draft, seq, room, pool)
                order, at, budget = draft.order, draft.at, draft.budget
                if draft.stopped:
                    break
                if not served:
                    continue
            if prefixes is not None and (end if end < known else known) >= (seq.registered + 1) * size:
                prefixes.register(seq, min(end, known - next_token))
            if intervals and not seq.decoding:
                draft.prefilled = True
            schedule((seq, tokens))
            budget -= tokens + surcharge
        draft.budget = budget

    def _make_room(self, draft: _Draft, seq: TrackedSequence, tokens: int, pool: BlockPool) -> bool:
        """Preempt others until `seq` has its blocks; False if it was its own turn to give way."""
        if not draft.preempted:
            draft.order = list(draft.order)
        while not pool.grow(seq, tokens):
            victim = self._victim(draft)
            pool.release(victim)
            draft.preempted.append(victim)
            if victim is seq:
                draft.stopped = not (self._rules.priority or self._rules.least_computed)
                return False
        return True

    def _victim(self, draft: _Draft) -> TrackedSequence:
        """Take the sequence that gives way out of the running list, and out of the step if it was in it."""
        order = draft.order
        assert isinstance(order, list)
        if self._rules.priority:  # the first of equals
            at = max(range(len(order)), key=lambda i: (order[i].priority, order[i].arrival_ns))
        elif self._rules.least_computed:  # the last of equals
            at = min(range(len(order)), key=lambda i: (order[i].computed, -i))
        else:
            at = len(order) - 1
        victim: TrackedSequence = order.pop(at)
        if at < draft.at:
            draft.at -= 1
        for place, (seq, tokens) in enumerate(draft.work):
            if seq is victim:
                del draft.work[place]
                draft.budget += tokens + self._drafts.surcharge
                break
        return victim

    # --- waiting sequences

    def _admit(self, draft: _Draft, waiting: deque[TrackedSequence], pool: BlockPool, held: bool) -> None:
        """Add waiting sequences, head first, until one does not fit."""
        running, partial = len(draft.order), self._partial(draft)
        pads = self._drafts.k > 0 and all(seq.decoding for seq, _ in draft.work)
        busy = bool(draft.work)
        for seq in waiting:
            if draft.budget <= 0 or running >= self._rules.max_running:
                break
            hits = pool.find(seq, (seq.known - 1) // pool.block_size)
            cached = len(hits) * pool.block_size
            left = seq.known - cached
            if held and left > 1:
                break
            padded = (
                left == 1 and pads and (busy or cached > 0) and seq.known + self._drafts.k <= self._rules.max_model_len
            )
            tokens = 1 + self._drafts.k if padded else min(left, draft.cap)
            room = draft.budget - self._drafts.surcharge
            if tokens > room:
                if padded or not self._rules.chunked:
                    break
                tokens = room
            if tokens < left and self._rules.max_partial is not None:
                if partial >= self._rules.max_partial:
                    break
                partial += 1
            if tokens <= 0 or not self._take_in(seq, hits, cached + tokens, running, pool):
                break
            running += 1
            draft.admitted.append(seq)
            draft.work.append((seq, tokens))
            draft.budget -= tokens + self._drafts.surcharge

    def _partial(self, draft: _Draft) -> int:
        """Running sequences whose prompt will not have been computed to the end after this step."""
        if self._rules.max_partial is None:
            return 0
        computed = {seq.index: tokens for seq, tokens in draft.work}
        return sum(seq.todo > computed.get(seq.index, 0) for seq in draft.order if not seq.decoding)

    def _take_in(self, seq: TrackedSequence, hits: Sequence[int], end: int, running: int, pool: BlockPool) -> bool:
        """Give a waiting sequence its blocks; False if they, or those of all that is known of it, are not there."""
        spare = self._rules.watermark if running else 0
        room = min(end + self._drafts.lookahead, self._rules.max_model_len)
        whole = min(seq.known, self._rules.max_model_len) if self._rules.reserve else 0
        if not pool.fits(seq, hits, max(room, whole), spare):
            return False
        pool.adopt(seq, hits)
        pool.allocate(seq, room)
        pool.register(seq, min(end, seq.known - self._drafts.next_token))
        return True

    # --- thresholds and intervals

    def _cap(self, sequences: int) -> int:
        """Most tokens of one sequence in a step: the long-prefill threshold, unless the sequence is alone."""
        if sequences <= 1:
            return NO_CAP
        share = self._rules.budget // sequences if self._rules.adaptive else 0
        return max(self._rules.threshold, share) or NO_CAP

    def _is_held(self, view: FullView) -> bool:
        """Must prefills wait in this step?"""
        if self._passes is not None:
            due = self._passes() % self._rules.interval == 0
        else:
            due = self._last_prefill is None or self._calls - self._last_prefill >= self._rules.interval
        if due or self._left:
            return False
        return any(seq.decoding for seq in view.order)

    def _note_prefill(self, draft: _Draft, view: FullView, held: bool) -> None:
        admitted = len(draft.admitted)
        if draft.prefilled or any(seq.known - seq.cached > 1 for seq in draft.admitted):
            self._last_prefill = self._calls
        if not held and not draft.preempted:  # else the waiting queue was not gone through
            self._left = len(view.waiting) > admitted
