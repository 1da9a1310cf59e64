"""The complete vLLM V1 policy (`vllm/v1/core/sched/scheduler.py`), with every setting.

It schedules the running list first, in its order, then the waiting queue, head first, unless a sequence was preempted,
as the faster `scheduling.vllm` does. In addition it supports prefill intervals, and drafts whose number differs between
sequences and steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from simulator.memory import BlockPool, PrefixPool
from simulator.scheduling.plan import Plan
from simulator.scheduling.sequence import TrackedSequence
from simulator.scheduling.setup import NO_CAP, PolicySetup
from simulator.scheduling.vllm_settings import victim_rule, vllm_limits


class FullView(Protocol):
    """The state that this policy reads."""

    @property
    def waiting(self) -> deque[TrackedSequence]:
        """The waiting queue, in the order in which it is served."""

    @property
    def order(self) -> Sequence[TrackedSequence]:
        """The running list, in order of admission."""


class _Draft:
    """A plan while it is formed."""

    __slots__ = ("admitted", "at", "budget", "cap", "order", "preempted", "prefilled", "stopped", "work")

    def __init__(self, order: Sequence[TrackedSequence], budget: int, cap: int) -> None:
        self.order = order
        self.at = 0  # position of the scan in `order`
        self.budget = budget
        self.cap = cap
        self.work: list[tuple[TrackedSequence, int]] = []
        self.admitted: list[TrackedSequence] = []
        self.preempted: list[TrackedSequence] = []
        self.prefilled = False  # whether a running prefill was scheduled, even if it has been preempted since
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
    victim: Callable[[Sequence[Any]], int]
    takes_last: bool
    max_partial: int | None
    interval: int
    max_model_len: int


class _Drafts(NamedTuple):
    """Draft tokens of a sequence in a step, and their needs; fields as in `Speculation`."""

    k: int = 0
    lookahead: int = 0
    surcharge: int = 0
    next_token: int = 0


class ExplicitVllmPolicy:
    """vLLM's scheduler, which goes through every sequence in each step. Its only state is that of the prefill interval.

    `setup.passes` returns the number of steps of the data-parallel group. Its ranks prefill in the same steps: those
    whose number is a multiple of the interval. An engine core without such a group counts from its last prefill.
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
            victim_rule(settings),
            settings.scheduling_policy == "fcfs" and settings.preemption_victim == "last",
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
        """Schedule running sequences, then waiting ones."""
        order, waiting = view.order, view.waiting
        self._calls += bool(order or waiting)  # vLLM does not call its scheduler without unfinished requests
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
                continue  # its last token is in flight, even if all drafts are rejected
            tokens = target + seq.drafts - computed
            if tokens > 1:  # without the call of `min`, since this runs for every sequence with drafts
                if tokens > cap:
                    tokens = cap
                if tokens > budget - surcharge:
                    tokens = budget - surcharge
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
        """Preempt sequences until `seq` has its blocks; False if `seq` itself was preempted."""
        if not draft.preempted:
            draft.order = list(draft.order)
        while not pool.grow(seq, tokens):
            victim = self._victim(draft)
            pool.release(victim)
            draft.preempted.append(victim)
            if victim is seq:
                draft.stopped = self._rules.takes_last
                return False
        return True

    def _victim(self, draft: _Draft) -> TrackedSequence:
        """Remove the sequence to preempt from the running list, and from the step if it is scheduled, and return it."""
        order = draft.order
        assert isinstance(order, list)
        at = self._rules.victim(order)
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
        """Admit waiting sequences, head first, until one does not fit."""
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
        """Return the number of running sequences whose prompt is still incomplete after this step."""
        if self._rules.max_partial is None:
            return 0
        computed = {seq.index: tokens for seq, tokens in draft.work}
        return sum(seq.todo > computed.get(seq.index, 0) for seq in draft.order if not seq.decoding)

    def _take_in(self, seq: TrackedSequence, hits: Sequence[int], end: int, running: int, pool: BlockPool) -> bool:
        """Allocate the blocks of a waiting sequence; False if too few are free for them, or for all known tokens."""
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
        """Return the most tokens of one sequence in a step: the long-prefill threshold if there are several."""
        if sequences <= 1:
            return NO_CAP
        share = self._rules.budget // sequences if self._rules.adaptive else 0
        return max(self._rules.threshold, share) or NO_CAP

    def _is_held(self, view: FullView) -> bool:
        """Return whether prefills must wait in this step."""
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
        if not held and not draft.preempted:  # else no waiting sequence was considered
            self._left = len(view.waiting) > admitted
