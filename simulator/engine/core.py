"""An engine core (vLLM: `EngineCore`), which forms steps, runs them on the device, and delivers their tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from simpy.events import Event

from cost_models.shape import BatchShape
from simulator.engine.batches.interface import Step
from simulator.engine.clock import Clock
from simulator.engine.coasting import build_coasting
from simulator.engine.contracts import Connector, CoreParts, Listener
from simulator.engine.device import Device, Pipeline
from simulator.engine.front_end import FrontEndQueue
from simulator.engine.logs.request_log import RequestLog
from simulator.engine.logs.step_log import StepLog
from simulator.engine.observers import ObservedPolicy, Observer
from simulator.scheduling import STEADY, Plan, SequenceState

#: Rows of the step log are packed when the step's number has none of these bits.
_PACK_MASK = 4095
#: Coasting starts if the next event is later than the end of this number of steps.
_WORTHWHILE = 8


class EngineCore:
    """One scheduler with its batch, KV blocks and device. `batch.depth` steps may be in flight at once.

    With depth 1, scheduling is synchronous. With depth 2 (asynchronous scheduling) the next step is formed while the
    device runs the current one, and a request that arrives meanwhile is scheduled one step later.

    A step starts when the device is free and the CPU has prepared it. The CPU prepares one step at a time, from when it
    is formed, so that a step takes max(device, host) where they overlap, and their sum where they do not.
    """

    def __init__(
        self, clock: Clock, parts: CoreParts, log: RequestLog, listener: Listener, observer: Observer | None = None
    ) -> None:
        self.batch = parts.batch
        self.cost = parts.cost
        self.steps = StepLog(parts.batch.paused)
        self.connectors: tuple[Connector, ...] = ()
        self.pipeline: Pipeline | None = None  # the stages that the core shares with others, if there are any
        self._clock = clock
        self._policy = parts.policy if observer is None else ObservedPolicy(parts.policy, observer, clock)
        self._front_end = FrontEndQueue(parts.front_end)
        self._log = log
        self._listener = listener
        self._observer = observer
        self._device = Device()
        self._unprepared = False  # whether `_prepare` may have work
        self._far_ns = 0  # least time to the next event for coasting; 0 if the batch changes
        if observer is not None:
            observer.attach(self)
        self._start()

    def _start(self) -> None:
        self._loop = self._clock.loop(self._run())

    def connect(self, connector: Connector) -> None:
        """Add a connector, which is called before the others."""
        self.connectors = (connector, *self.connectors)
        self._unprepared = True

    # --- requests

    def submit(self, seq: SequenceState) -> None:
        """Add a request to the waiting queue, through the front end."""
        if not self._front_end.put(seq, self._clock._now, self.batch.running):
            self._admit(seq, self._clock._now)
            self.wake()
            return
        self._unprepared = True
        if self._sleeps() and len(self._front_end.queue) == 1:
            self._clock.at(self._front_end.queue[0][0], self.wake)

    def resubmit(self, seq: SequenceState) -> None:
        """Add a request that has passed the front end before to the waiting queue."""
        self._admit(seq, self._clock._now)
        self.wake()

    def _admit(self, seq: SequenceState, ready_ns: int) -> None:
        self.batch.add(seq)
        if self._observer is not None:
            self._observer.arrived(seq, ready_ns)

    def _let_in(self) -> None:
        """Move the requests that the front end has processed by now to the waiting queue."""
        front_end, queue, now = self._front_end, self._front_end.queue, self._clock._now
        while queue and queue[0][0] <= now:
            ready_ns, seq = queue.popleft()
            front_end.tokens -= seq.prompt_tokens
            self._admit(seq, ready_ns)

    def withdraw(self, seq: SequenceState) -> None:
        """Withdraw a request: at the front end at once, else when the next step is formed, as in vLLM, unless it has
        finished by then. The listener is notified."""
        if self._front_end.remove(seq):
            self._listener.withdrawn(self, seq)
        else:
            self._front_end.withdrawals.append(seq)
            self._unprepared = True
            self.wake()

    def _withdraw(self) -> None:
        withdrawn, self._front_end.withdrawals = self._front_end.withdrawals, []
        for seq in withdrawn:
            if not any(connector.withdraw(seq) for connector in self.connectors):
                self.batch.withdraw(seq)
            self._listener.withdrawn(self, seq)

    def free(self, seq: SequenceState) -> None:
        """Free the blocks of a sequence that is not in the batch."""
        self.batch.free(seq)
        if self._sleeps() and (self.batch.waiting or self._pending()):
            self.wake()

    @property
    def number(self) -> int:
        """Number of the core in the run."""
        return self.batch.number

    def _pending(self) -> bool:
        """Return whether a connector has pending requests."""
        return bool(self.connectors) and sum([connector.pending for connector in self.connectors]) > 0

    def deliver(self, seq: SequenceState) -> int:
        """Deliver a token of `seq` that another core has computed: at a step boundary, as a row of length 0. Return the
        time of that boundary, in ns."""
        batch, now = self.batch, self._clock._now
        row = batch.skip_row()
        self.steps.insert(row)
        at_ns = max(now, self._device.free_ns)
        self.steps.write((now, at_ns, at_ns, 0, 0, batch.running, len(batch.waiting), self.kv_used))
        self._log.segment(seq.index, batch.number, row, row)
        return at_ns

    # --- the load

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and delivered output tokens of the unfinished requests."""
        elsewhere = sum([connector.known_tokens for connector in self.connectors])
        return self.batch.known_tokens + self._front_end.tokens + elsewhere

    @property
    def waiting(self) -> int:
        """Number of requests that are not running: at the front end, or in the waiting queue."""
        return len(self.batch.waiting) + len(self._front_end.queue)

    @property
    def kv_used(self) -> int:
        """Number of KV blocks in use now."""
        return self.batch.pool.blocks - self.batch.pool.free

    # --- steps

    def wake(self, _: Event | None = None) -> None:
        """Check for work: before the next step is formed, and at once if the core is idle."""
        self._unprepared = True
        if self._loop.idle:
            self._clock.wake(self._loop)

    def _sleeps(self) -> bool:
        return self._loop.idle

    def _next_ns(self) -> int:
        """Return the time of the next event other than the ends of steps in flight, in ns."""
        due_ns, queue = self._clock.next_event_ns(), self._front_end.queue
        return queue[0][0] if queue and queue[0][0] < due_ns else due_ns

    def _run(self) -> Generator[None, Event, None]:
        """Run the engine's loop: keep the device busy, and wait for the end of its oldest step."""
        clock, batch, log, asynchronous = self._clock, self.batch, self.steps, self.batch.depth == 2
        observer, entering = self._observer, self._front_end.queue
        alone = self.pipeline is None and observer is None  # no other core steps in between
        coasting = build_coasting(clock, batch, self.cost, self._device, log) if alone else None
        step: Step | None = None
        loop, events = self._loop, clock.events
        while True:
            ahead = asynchronous
            if step is None:
                step = self._form()
                if step is None:
                    loop.idle = True
                    if entering:
                        clock.at(entering[0][0], self.wake)
                    yield
                    continue
                # After a step that only preempts, no other is formed: the end of that step must free the queue first.
                ahead = asynchronous and bool(step.shape.sampled or step.shape.chunks)
            following = self._form() if ahead else None
            end_ns = step.end_ns
            if not clock.until(end_ns, loop):
                yield
            log.completed += 1 + log.inserted
            log.inserted = 0
            finished = batch.complete(step)
            if observer is not None:
                observer.completed(step)
            if finished:
                self._finish(finished)
            elif self._far_ns and coasting is not None and (not events or events[0][0] - end_ns > self._far_ns):
                until_ns = self._next_ns()
                if until_ns - end_ns > self._far_ns and not self._pending():
                    following = coasting.run(until_ns, following)
            step = following

    def _finish(self, finished: Sequence[SequenceState]) -> None:
        """Notify the listener of finished sequences; later withdrawals of them are dropped."""
        if self._front_end.withdrawals:
            self._front_end.withdrawals = [seq for seq in self._front_end.withdrawals if seq not in finished]
        self._listener.finished(self, finished)

    def _prepare(self) -> None:
        """Update the waiting queue and the batch, before a step is formed."""
        if self._front_end.queue:
            self._let_in()
        if self._front_end.withdrawals:
            self._withdraw()
        self._unprepared = bool(self._front_end.queue)
        for connector in self.connectors:
            if connector.pending:
                connector.serve()
                self._listener.load_fell(self)
            if connector.sees_steps or connector.pending:  # another one calls `wake`
                self._unprepared = True

    def _form(self) -> Step | None:
        """Form the next step now and run it on the device; None if there is no work."""
        if self._unprepared:
            self._prepare()
        batch, pool, log, device = self.batch, self.batch.pool, self.steps, self._device
        plan, step = STEADY, batch.form_steady() if self._observer is None else None
        if step is None:
            plan = self._policy.schedule(batch, pool)
            step = batch.form(plan)
        if step is None:
            return None
        now = self._clock._now
        decodes, context, window_context, chunks, _, _, drafts, proposed = shape = step.shape
        prefill_tokens = 0
        for tokens, _ in chunks:
            prefill_tokens += tokens
        start_ns = now if now > device.free_ns else device.free_ns
        if not decodes and not prefill_tokens:  # the step only preempts, and takes no time
            step.end_ns = start_ns
        elif self.pipeline is not None:
            start_ns, step.end_ns = self.pipeline.place(now, self.charged(shape, plan))
        else:
            if chunks and decodes:
                log.mixed((log.formed, context, window_context, device.prepared_ns))
            charged = shape if plan.padded is None else self.charged(shape, plan)
            device_ns, host_ns, draft_ns = self.cost.step_cost(charged)
            if drafts or proposed:
                log.drafted((log.formed, drafts, proposed, draft_ns))
            if host_ns:
                prepared_ns = device.prepared_ns
                device.prepared_ns = prepared_ns = (now if now > prepared_ns else prepared_ns) + host_ns
                if prepared_ns > start_ns:
                    start_ns = prepared_ns
            device.free_ns = step.end_ns = start_ns + device_ns
            self._far_ns = device_ns * _WORTHWHILE if plan is STEADY else 0
        if plan is not STEADY and (plan.admitted or plan.preempted):
            self._log_changes(plan, now)
        if self.connectors:
            for connector in self.connectors:
                if connector.sees_steps:
                    connector.scheduled(plan, start_ns, step.end_ns)
        waiting, kv_used = len(batch.waiting), pool.blocks - pool.free
        log.write((now, start_ns, step.end_ns, decodes, prefill_tokens, batch.running, waiting, kv_used))
        if not step.index & _PACK_MASK:
            log.pack()
        if self._observer is not None:
            self._observer.formed(step, now, start_ns)
        return step

    def charged(self, shape: BatchShape, plan: Plan) -> BatchShape:
        """Return the shape that determines a step's time: `shape`, or the plan's rectangle of prompts or decodes."""
        if plan.padded is None:
            return shape
        rows, tokens = plan.padded
        if shape.chunks:
            return BatchShape(chunks=((tokens, 0),) * rows, new_requests=shape.new_requests, sampled=rows)
        window = self.cost.window
        return BatchShape(rows, rows * tokens, rows * min(tokens, window) if window else 0, (), 0, rows)

    def _log_changes(self, plan: Plan, now: int) -> None:
        log = self._log
        for seq in plan.preempted:
            log.preemptions.leaves(seq.index, now)
        for seq in plan.admitted:
            if log.scheduled_ns[seq.index] < 0:
                log.scheduled_ns[seq.index] = now
            elif seq.preemptions:
                log.preemptions.returns(seq.index, now)
        self._listener.load_fell(self)
