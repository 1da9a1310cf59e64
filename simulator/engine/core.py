"""A replica, or a rank of it: a process that forms steps, lets the device run them, and delivers their tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Protocol

from simpy.events import Event

from cost_models.shape import BatchShape, CostModel
from cost_models.specs.host import FrontEnd
from simulator.engine.batches.base import Batch, Step
from simulator.engine.batches.lazy import LazyBatch
from simulator.engine.clock import Clock
from simulator.engine.device import Pipeline
from simulator.engine.logs.request_log import RequestLog
from simulator.engine.logs.step_log import StepLog
from simulator.errors import StalledError
from simulator.memory import BlockPool
from simulator.scheduling import STEADY, Plan, Policy, SequenceState

#: Rows of the step log are packed when the step's number has none of these bits.
_PACK_MASK = 4095
#: Coasting starts when the next event is more than so many steps away, takes at most so many steps at a time, and from
#: so many on asks the cost model for all of them at once.
_WORTHWHILE, _COAST, _VECTOR = 8, 256, 12


class Observer(Protocol):
    """Sees what a replica gets, and when its scheduler could first know of it, when the scheduler is asked, and each of
    its steps twice: formed, and when it has delivered its tokens."""

    def attach(self, replica: EngineCore) -> None: ...
    def asked(self, now_ns: int) -> None: ...
    def arrived(self, seq: SequenceState, ready_ns: int) -> None: ...
    def formed(self, step: Step, sched_ns: int, start_ns: int) -> None: ...
    def completed(self, step: Step) -> None: ...


class _Watched:
    """A policy, of which an observer hears when it is asked."""

    def __init__(self, policy: Policy, observer: Observer, clock: Clock) -> None:
        self._policy, self._observer, self._clock = policy, observer, clock

    def schedule(self, view: Batch, pool: BlockPool) -> Plan:
        """The policy's plan of the next step."""
        self._observer.asked(self._clock._now)
        return self._policy.schedule(view, pool)


class Inbox(Protocol):
    """What a replica is to take over from others; see `handover.Inbox`."""

    def serve(self) -> None:
        """Take over what may be, before a step is formed."""

    @property
    def pending(self) -> int:
        """Requests that could join the batch, or get blocks, when the next step is formed."""

    @property
    def known_tokens(self) -> int:
        """Tokens known of the requests that are on their way here."""


class Offloading(Protocol):
    """What loads KV of waiting sequences from CPU memory; see `offload.Offloading`."""

    def serve(self) -> None:
        """Start what is to be loaded, before a step is formed."""

    def admitted(self, sequences: Iterable[SequenceState]) -> None:
        """These were admitted to the step that is being formed."""


class EngineCore:
    """`depth` steps may be under way at once: 1 is synchronous scheduling, 2 asynchronous.

    Asynchronously the next step is formed while the device runs this one, and what arrives meanwhile is seen one later.

    A step starts when the device is free and the CPU has prepared it. The CPU prepares one step at a time, from when it
    is formed, so that a step takes max(device, host) where they overlap, and their sum where they do not.

    A request reaches the scheduler through the server's front end, which handles requests in turn and takes the longer
    the more streams it serves. Steps look there when they are formed: a request on its way costs no event.

    A lane of a `pipeline` shares the stages and the CPU with the other lanes.
    """

    def __init__(
        self,
        clock: Clock,
        batch: Batch,
        policy: Policy,
        pool: BlockPool,
        cost: CostModel,
        front_end: FrontEnd,
        depth: int,
        requests: RequestLog,
        finished: Callable[[EngineCore, Iterable[SequenceState]], None],
        observer: Observer | None = None,
        checks: bool = False,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.number = batch.number
        self.batch = batch
        self.cost = cost
        self.inbox: Inbox | None = None
        self.offloading: Offloading | None = None
        #: Hears which chunks a step computes, and from when to when.
        self.computes: Callable[[Iterable[tuple[SequenceState, int]], int, int], None] | None = None
        self.steps = StepLog(batch.paused)
        self._clock = clock
        self._policy = policy if observer is None else _Watched(policy, observer, clock)
        self._pool = pool
        self._front_end = front_end
        #: (when the scheduler sees it, request), in that order.
        self._entering: deque[tuple[int, SequenceState]] = deque()
        self._entering_tokens = 0
        self.promised_tokens = 0  # of prompts that will come as soon as there is a place for what follows them
        self._depth = depth
        self._requests = requests
        self._finished = finished
        self._observer = observer
        self._checks = checks
        self._pipeline = pipeline
        self._watched = checks or observer is not None
        self._far_ns = 0  # coasting is worth while if the next event is farther than this; 0 if the batch changes
        self._busy_until_ns = 0
        self._tokens_waiting = 0  # rows of delivered tokens behind the step under way
        self._prepared_ns = 0  # when the CPU has prepared the step formed last
        self._wake: Event | None = None
        if observer is not None:
            observer.attach(self)
        self._start()

    def _start(self) -> None:
        self._clock.process(self._run())

    def submit(self, seq: SequenceState) -> None:
        """Take a request in: into the waiting queue, by way of the front end."""
        delay_ns = self._front_end.request_ns + self._front_end.running_ns * self.batch.running
        if not delay_ns:
            self._admit(seq, self._clock._now)
            self.wake()
            return
        ready_ns = self._clock._now + delay_ns
        if self._entering:
            ready_ns = max(ready_ns, self._entering[-1][0])
        self._entering.append((ready_ns, seq))
        self._entering_tokens += seq.prompt_tokens
        if self._rests() and len(self._entering) == 1:
            self._clock.at(ready_ns, self.wake)

    def _admit(self, seq: SequenceState, ready_ns: int) -> None:
        self.batch.add(seq)
        if self._observer is not None:
            self._observer.arrived(seq, ready_ns)

    def _let_in(self) -> None:
        """Put what the front end has handled by now into the waiting queue."""
        entering, now = self._entering, self._clock._now
        while entering and entering[0][0] <= now:
            ready_ns, seq = entering.popleft()
            self._entering_tokens -= seq.prompt_tokens
            self._admit(seq, ready_ns)

    def readmit(self, seq: SequenceState) -> None:
        """Put a request that is known here into the waiting queue, past the front end."""
        self._admit(seq, self._clock._now)
        self.wake()

    def let_go(self, seq: SequenceState) -> None:
        """Take back the blocks of a sequence that is not in the batch."""
        self.batch.let_go(seq)
        if self.batch.waiting or (self.inbox is not None and self.inbox.pending):
            self.wake()

    def deliver(self, seq: SequenceState) -> int:
        """Let the client have a token of `seq` that was computed elsewhere: at a step boundary, a row of no length.
        Return when that is."""
        batch, pool, now = self.batch, self._pool, self._clock._now
        row = batch.skip_row()
        if row > self.steps.completed + self._tokens_waiting:  # behind a step under way
            self._tokens_waiting += 1
        else:
            self.steps.completed += 1
        at_ns = max(now, self._busy_until_ns)
        self.steps.write((now, at_ns, at_ns, 0, 0, batch.running, len(batch.waiting), pool.blocks - pool.free))
        self._requests.segment(seq.index, self.number, row, row)
        return at_ns

    def wake(self, _: Event | None = None) -> None:
        """Look whether there is something to do, if this is asleep."""
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _rests(self) -> bool:
        return self._wake is not None

    def _next_ns(self) -> float:
        """When something happens next that no step under way knows of."""
        due_ns = self._clock.next_event_ns()
        return min(due_ns, self._entering[0][0]) if self._entering else due_ns

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and delivered output tokens of the unfinished requests."""
        outside = 0 if self.inbox is None else self.inbox.known_tokens
        return self.batch.known_tokens + self._entering_tokens + self.promised_tokens + outside

    @property
    def waiting(self) -> int:
        """Requests that are not running: at the front end, or in the waiting queue."""
        return len(self.batch.waiting) + len(self._entering)

    @property
    def kv_used(self) -> int:
        """KV blocks in use now."""
        return self._pool.blocks - self._pool.free

    def _run(self) -> Generator[Event, None, None]:
        """The engine's loop: keep the pipeline full, and wait for its oldest step to end."""
        clock, batch, log, asynchronous = self._clock, self.batch, self.steps, self._depth == 2
        observer, report = self._observer, self._finished
        alone = self._pipeline is None and not self._watched  # no other lane steps in between
        lazy = batch if isinstance(batch, LazyBatch) and alone else None
        step: Step | None = None
        while True:
            ahead = asynchronous
            if step is None:
                step = self._form()
                if step is None:
                    self._wake = clock.event()
                    if self._entering:
                        clock.at(self._entering[0][0], self.wake)
                    yield self._wake
                    continue
                # Behind a new step that only preempts nothing is formed: its end must free the queue first.
                ahead = asynchronous and bool(step.shape.sampled or step.shape.chunks)
            following = self._form() if ahead else None
            end_ns = step.end_ns
            if not clock.advance(end_ns):
                yield clock.timeout(end_ns - clock._now)
            log.completed += 1 + self._tokens_waiting
            self._tokens_waiting = 0
            finished = batch.complete(step)
            if observer is not None:
                observer.completed(step)
            if finished:
                report(self, finished)
            elif (
                self._far_ns
                and lazy is not None
                and self._next_ns() - end_ns > self._far_ns
                and (self.inbox is None or not self.inbox.pending)
            ):
                following = self._coast(lazy, following)
            step = following

    def _form(self) -> Step | None:
        """Form the next step now and put it on the device; None if there is nothing to do."""
        if self._entering:
            self._let_in()
        if self.inbox is not None and self.inbox.pending:
            self.inbox.serve()
        if self.offloading is not None:
            self.offloading.serve()
        batch, pool, log = self.batch, self._pool, self.steps
        plan = self._policy.schedule(batch, pool)
        step = batch.form(plan)
        if step is None:
            return None
        now = self._clock._now
        decodes, context, window_context, chunks, _, _, drafts, proposed = shape = step.shape
        prefill_tokens = sum([tokens for tokens, _ in chunks]) if chunks else 0
        start_ns = now if now > self._busy_until_ns else self._busy_until_ns
        if not decodes and not prefill_tokens:  # it only preempts, and takes no time
            step.end_ns = start_ns
        elif self._pipeline is not None:
            start_ns, step.end_ns = self._pipeline.place(now, self.charged(shape, plan))
        else:
            if chunks and decodes:
                log.mixed((log.formed, context, window_context, self._prepared_ns))
            charged = shape if plan is STEADY or plan.padded is None else self.charged(shape, plan)
            device_ns, host_ns, draft_ns = self.cost.step_cost(charged)
            if drafts or proposed:
                log.drafted((log.formed, drafts, proposed, draft_ns))
            if host_ns:
                self._prepared_ns = max(self._prepared_ns, now) + host_ns
                start_ns = max(start_ns, self._prepared_ns)
            self._busy_until_ns = step.end_ns = start_ns + device_ns
            self._far_ns = device_ns * _WORTHWHILE if plan is STEADY else 0
        if plan.admitted or plan.preempted:
            self._note_changes(plan, now)
        if self.computes is not None and prefill_tokens:
            self.computes(plan.chunks or plan.work, start_ns, step.end_ns)
        waiting, kv_used = len(batch.waiting), pool.blocks - pool.free
        log.write((now, start_ns, step.end_ns, decodes, prefill_tokens, batch.running, waiting, kv_used))
        if not step.index & _PACK_MASK:
            log.pack()
        if self._watched:
            self._inspect(step, now, start_ns)
        return step

    def charged(self, shape: BatchShape, plan: Plan) -> BatchShape:
        """What a step takes the time of: `shape`, or a rectangle of prompts, or of decodes, in its place."""
        if plan.padded is None:
            return shape
        rows, tokens = plan.padded
        if shape.chunks:
            return BatchShape(chunks=((tokens, 0),) * rows, new_requests=shape.new_requests, sampled=rows)
        window = self.cost.window
        return BatchShape(rows, rows * tokens, rows * min(tokens, window) if window else 0, (), 0, rows)

    def _coast(self, batch: LazyBatch, following: Step | None) -> Step | None:
        """Run the steps in which everybody decodes and nothing else happens, as far as the next event reaches.

        They are those that the loop would form: the policy's answer cannot change while nobody comes, waits, prefills
        or ends and the blocks suffice. `following` is the step under way behind the one that has just ended, if there
        is one, and so is what is returned.
        """
        clock = self._clock
        until_ns, now = self._next_ns(), clock._now
        if not batch.quiet_steps(1) or (following is not None and (following.ending or following.end_ns >= until_ns)):
            return following
        shape = batch.next_decodes()
        first_ns, host_ns, _ = self.cost.step_cost(shape)
        prepared, busy = self._prepared_ns, self._busy_until_ns
        if (busy if following is not None else max(prepared, now) + host_ns + first_ns) >= until_ns:
            return following
        within = (until_ns - now) / max(first_ns, 1)
        quiet = batch.quiet_steps(_COAST if within >= _COAST else int(within) + 1)
        devices, blocks = self._devices_ns(shape, first_ns, quiet), self._pool.blocks - self._pool.free
        done, decodes, running = 0, shape.decodes, batch.running
        write, lacking = self.steps.write, batch.lacking_blocks(len(devices))
        for device_ns, lack in zip(devices, lacking, strict=True):
            prepares = max(prepared, now) + host_ns
            start_ns = max(busy, prepares)
            end_ns = start_ns + device_ns
            ends = end_ns if following is None else busy  # the end that this step's forming waits for next
            if ends >= until_ns:
                break
            blocks += lack
            write((now, start_ns, end_ns, decodes, 0, running, 0, blocks))
            prepared, busy, now, done = prepares, end_ns, ends, done + 1
        if not done:
            return following
        self._prepared_ns, self._busy_until_ns = prepared, busy
        self.steps.completed += done
        self.steps.pack()
        clock.advance(now)
        coasted = batch.coast(done)
        if following is None:
            return None
        coasted.end_ns = busy
        return coasted

    def _devices_ns(self, shape: BatchShape, first_ns: int, steps: int) -> list[int]:
        """Device times of that many pure decode steps, `shape` the first."""
        times = [first_ns] if steps else []
        if steps >= _VECTOR:
            times[:] = self.cost.decode_run(shape, steps).tolist()
            return times
        decodes, context, window_context, _, _, _, _, _ = shape
        for _ in range(1, steps):
            context += decodes
            times.append(self.cost.step_cost(BatchShape(decodes, context, window_context, (), 0, decodes)).device_ns)
        return times

    def _note_changes(self, plan: Plan, now: int) -> None:
        requests = self._requests
        for seq in plan.preempted:
            requests.leaves(seq.index, now)
        for seq in plan.admitted:
            if requests.scheduled_ns[seq.index] < 0:
                requests.scheduled_ns[seq.index] = now
            elif seq.preemptions:
                requests.returns(seq.index, now)
        if self.offloading is not None:
            self.offloading.admitted(plan.admitted)

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
