"""One replica: a SimPy process that forms steps, lets the device run them, and delivers their tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol

from simpy.events import Event

from cost_models.shape import CostModel
from simulator.engine.batch import Batch, Step
from simulator.engine.clock import Clock
from simulator.engine.log import RequestLog, StepLog
from simulator.errors import StalledError
from simulator.memory import BlockPool
from simulator.scheduling import Policy, Sequence


class Observer(Protocol):
    """Sees each step of one replica twice: when it is formed, and when it has delivered its tokens."""

    def attach(self, replica: Replica) -> None: ...
    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None: ...
    def completed(self, step: Step) -> None: ...


class Replica:
    """`depth` steps may be under way at once: 1 is synchronous scheduling, 2 asynchronous (the next step is formed while
    the device runs this one, so what arrives meanwhile is seen one step later).

    A step starts when the device is free and the CPU has prepared it: at max(end of the step before, forming + host).
    """

    def __init__(
        self,
        clock: Clock,
        batch: Batch,
        policy: Policy,
        pool: BlockPool,
        cost: CostModel,
        depth: int,
        requests: RequestLog,
        finished: Callable[[int], None],
        observer: Observer | None = None,
        checks: bool = False,
    ) -> None:
        self.batch = batch
        self.steps = StepLog()
        self._clock = clock
        self._policy = policy
        self._pool = pool
        self._cost = cost
        self._depth = depth
        self._requests = requests
        self._finished = finished
        self._observer = observer
        self._checks = checks
        self._watched = checks or observer is not None
        self._busy_until_ns = 0
        self._wake: Event | None = None
        if observer is not None:
            observer.attach(self)
        clock.process(self._run())

    def submit(self, seq: Sequence) -> None:
        """Take a request into the waiting queue."""
        self.batch.add(seq)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    @property
    def kv_used(self) -> int:
        """KV blocks in use now."""
        return self._pool.blocks - self._pool.free

    def arrival_ns(self, index: int) -> int:
        """When request `index` arrived at the service."""
        return self._requests.arrival_ns[index]

    def _run(self) -> Generator[Event, None, None]:
        """The engine's loop: keep the pipeline full, and wait for its oldest step to end."""
        clock, batch, log, asynchronous = self._clock, self.batch, self.steps, self._depth == 2
        observer, report = self._observer, self._finished
        step: Step | None = None
        while True:
            if step is None:
                step = self._form()
            if step is None:
                self._wake = clock.event()
                yield self._wake
                continue
            # Behind a step that only preempts nothing is formed: its end must free the queue first.
            following = self._form() if asynchronous and step.shape.sampled + len(step.shape.chunks) else None
            end_ns = step.end_ns
            if not clock.advance(end_ns):
                yield clock.timeout(end_ns - clock._now)
            log.completed += 1
            finished = batch.complete(step)
            if observer is not None:
                observer.completed(step)
            for seq in finished:
                report(seq.index)
            step = following

    def _form(self) -> Step | None:
        """Form the next step now and put it on the device; None if there is nothing to do."""
        batch, pool = self.batch, self._pool
        plan = self._policy.schedule(batch, pool)
        step = batch.form(plan)
        if step is None:
            return None
        now = self._clock._now
        if plan.admitted:
            self._note_admitted(plan.admitted, now)
        decodes, _, _, chunks, _, _, _ = shape = step.shape
        prefill_tokens = sum([tokens for tokens, _ in chunks]) if chunks else 0
        start_ns = now if now > self._busy_until_ns else self._busy_until_ns
        if decodes or prefill_tokens:
            device_ns, host_ns = self._cost.step_cost(shape)
            if start_ns < now + host_ns:
                start_ns = now + host_ns
            self._busy_until_ns = step.end_ns = start_ns + device_ns
        else:  # it only preempts, and takes no time
            step.end_ns = start_ns
        sched, start, end, decode, prefill, running, waiting, kv_used = self.steps.appends
        sched(now)
        start(start_ns)
        end(step.end_ns)
        decode(decodes)
        prefill(prefill_tokens)
        running(batch.running)
        waiting(len(batch.waiting))
        kv_used(pool.blocks - pool.free)
        if self._watched:
            self._inspect(step, now, start_ns)
        return step

    def _note_admitted(self, admitted: Iterable[Sequence], now: int) -> None:
        for seq in admitted:
            if not seq.preemptions:
                self._requests.scheduled_ns[seq.index] = now

    def _inspect(self, step: Step, now: int, start_ns: int) -> None:
        if self._checks:
            self.batch.check()
        if self._observer is not None:
            self._observer.formed(step, now, start_ns)

    def check_progress(self) -> None:
        """Raise StalledError if something is unfinished; to be asked when nothing will ever happen again."""
        if self.batch.unfinished:
            raise StalledError(self._stall_report())

    def _stall_report(self) -> str:
        head = self.batch.waiting[0] if self.batch.waiting else None
        return (
            f"nothing can be scheduled any more: {self.batch.running} running, "
            f"{len(self.batch.waiting)} waiting (head: {head}), {self._pool.free} of {self._pool.blocks} blocks free"
        )
