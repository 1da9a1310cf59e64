"""Observers of an engine core's steps, for recordings and checks of conservation laws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from simulator.engine.batches.interface import Batch, Step
from simulator.engine.clock import Clock
from simulator.memory import BlockPool
from simulator.scheduling import Plan, Policy, SequenceState

if TYPE_CHECKING:
    from simulator.engine.core import EngineCore


class Observer(Protocol):
    """Interface that is notified of an engine core's requests and steps."""

    def attach(self, core: EngineCore) -> None:
        """Attach the observer to an engine core; called once, at the start."""

    def asked(self, now_ns: int) -> None:
        """Handle a call of the policy, before it."""

    def arrived(self, seq: SequenceState, ready_ns: int) -> None:
        """Handle a request that has joined the waiting queue; the scheduler can know it from `ready_ns` on."""

    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None:
        """Handle a step that was formed at `sched_ns` and starts at `start_ns`."""

    def completed(self, step: Step) -> None:
        """Handle a step that has ended and delivered its tokens."""


class ObservedPolicy:
    """A policy that notifies an observer of each call."""

    def __init__(self, policy: Policy, observer: Observer, clock: Clock) -> None:
        self._policy, self._observer, self._clock = policy, observer, clock

    def schedule(self, view: Batch, pool: BlockPool) -> Plan:
        """Return the policy's plan of the next step."""
        self._observer.asked(self._clock._now)
        return self._policy.schedule(view, pool)


class ConservationCheck:
    """An observer that checks the conservation laws of the batch at every step, and then notifies another observer."""

    def __init__(self, following: Observer | None) -> None:
        self._following = following
        self._batch: Batch | None = None

    def attach(self, core: EngineCore) -> None:
        self._batch = core.batch
        if self._following is not None:
            self._following.attach(core)

    def asked(self, now_ns: int) -> None:
        if self._following is not None:
            self._following.asked(now_ns)

    def arrived(self, seq: SequenceState, ready_ns: int) -> None:
        if self._following is not None:
            self._following.arrived(seq, ready_ns)

    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None:
        assert self._batch is not None
        self._batch.check()
        if self._following is not None:
            self._following.formed(step, sched_ns, start_ns)

    def completed(self, step: Step) -> None:
        if self._following is not None:
            self._following.completed(step)
