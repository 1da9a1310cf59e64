"""What a run leaves behind: append-only typed columns, the only thing that `results` knows of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


class Status(IntEnum):
    """The state of a request at the end of the run. It ends at most once; NOT_ARRIVED and IN_FLIGHT are no ends.

    EXPIRED, CANCELLED and FAILED are withdrawn before their last token: by a deadline, by the client, or by a fault.
    """

    NOT_ARRIVED = 0
    IN_FLIGHT = 1
    COMPLETED = 2
    REJECTED = 3
    EXPIRED = 4
    CANCELLED = 5
    FAILED = 6


class Refusal(IntEnum):
    """The reason for which a request was refused on arrival. NO_REPLICA: no replica was open to it."""

    NONE = 0
    CONTEXT_LIMIT = 1
    KV_POOL = 2
    NO_REPLICA = 3


class ReplicaState(IntEnum):
    """The state of a replica. Its GPUs are in use in all states but DOWN; it gets requests while it is UP."""

    DOWN = 0
    STARTING = 1
    UP = 2
    DRAINING = 3


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """One row a request, in request order. Times are ns of the simulated clock, -1 where the moment never came.

    `arrival_ns` is the arrival at the service, `client_ns` the moment the client wanted to send it: earlier where a
    concurrency limit on the client's side held it back. `scheduled_ns` is the first time a step was formed with it,
    `first_token_ns` and `finish_ns` its first and last token. `emitted_tokens` counts the tokens delivered, also of
    requests that did not finish. `preemptions` and `recomputed_tokens` (computed tokens thrown away) are per request.
    `queried_tokens` were looked up in the prefix cache when the request was first admitted, and `cached_tokens` found;
    `recovered_tokens` were found there when it came back from a preemption.
    """

    client_ns: Ints
    arrival_ns: Ints
    scheduled_ns: Ints
    first_token_ns: Ints
    finish_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    emitted_tokens: Ints
    class_id: Ints
    replica: Ints
    status: Ints
    refusal: Ints
    preemptions: Ints
    recomputed_tokens: Ints
    queried_tokens: Ints
    cached_tokens: Ints
    recovered_tokens: Ints


@dataclass(frozen=True, slots=True)
class SegmentColumns:
    """Token times without a number a token: request `request` got a token at the end of each of its replica's steps
    from `first_step` to `last_step`, both included, but for those after the first in which decodes were paused. With
    speculation a step may bring several at once (`RunRecord.event_tokens`).

    A request has one segment, and one more for each time it was preempted or held. Rows are in order of request, and
    those of one request in time; step numbers count within the replica, from 0. The last step of a segment is not a
    paused one, unless it is also the first.
    """

    request: Ints
    replica: Ints
    first_step: Ints
    last_step: Ints


@dataclass(frozen=True, slots=True)
class PreemptionColumns:
    """One row a preemption, in the order in which they happened on each replica.

    Request `request` lost its place at `preempted_ns`, when a step was formed without it, and was scheduled again at
    `resumed_ns`: -1 if it never was.
    """

    request: Ints
    preempted_ns: Ints
    resumed_ns: Ints


@dataclass(frozen=True, slots=True)
class StepColumns:
    """One row a step (iteration), replica after replica: those of replica r are rows offsets[r] to offsets[r + 1].

    `sched_ns` is when the step was formed, `start_ns` and `end_ns` when the device ran it (end_ns never decreases
    within a replica). `decodes` and `prefill_tokens` are what it computed, `running` and `waiting` the sequences
    after it was formed, `kv_used` the KV blocks then in use. `stall_ns` is how much earlier the step would have ended
    without its prefill chunks, as far as they delayed decodes: 0 in a step that does not have both. `paused` lists the
    rows, in order, in which all running decodes stood still.
    """

    offsets: Ints
    sched_ns: Ints
    start_ns: Ints
    end_ns: Ints
    decodes: Ints
    prefill_tokens: Ints
    running: Ints
    waiting: Ints
    kv_used: Ints
    stall_ns: Ints
    paused: Ints


@dataclass(frozen=True, slots=True)
class DraftColumns:
    """One row a step in which drafts were verified or proposed, in the order of `StepColumns`, whose row is `step`.

    `draft_tokens` were verified, placeholders of vLLM's padding included; `draft_ns` is the part of the step's time
    that drafts took beyond the target's kernels: proposing, and rejection sampling.
    """

    step: Ints
    draft_tokens: Ints
    draft_ns: Ints


@dataclass(frozen=True, slots=True)
class DraftPositions:
    """One row a replica that speculates and a depth, from 0: in how many sequence-steps drafts of that depth were
    verified (`sequences`), how many `drafts` that were (more in a tree), how many of these sequence-steps `reached`
    the depth, all drafts before it accepted, and in how many one of that depth was `accepted`, too.

    Padding is not in it. A tree's level counts even if it is cut short. What was accepted counts even if the request
    ended before it.
    """

    replica: Ints
    depth: Ints
    sequences: Ints
    drafts: Ints
    reached: Ints
    accepted: Ints


@dataclass(frozen=True, slots=True)
class TransferColumns:
    """One row a request that was handed over from replica `source`, which computed its prompt, to `target`, in order of
    arrival. Times are ns, -1 where the moment never came.

    The prompt is computed at `prefill_end_ns`; the target has blocks for it from `reserved_ns` on; the transfer starts
    at `start_ns`, with its set-up, and its last byte arrives at `arrived_ns`; at `joined_ns` the target forms the first
    step with the request. `bytes` were sent, `failures` included; `recomputed` is 1 if the target had to compute the
    prompt in the end.
    """

    request: Ints
    source: Ints
    target: Ints
    prefill_end_ns: Ints
    reserved_ns: Ints
    start_ns: Ints
    arrived_ns: Ints
    joined_ns: Ints
    bytes: Ints
    failures: Ints
    recomputed: Ints


@dataclass(frozen=True, slots=True)
class OffloadColumns:
    """One row a request for which CPU memory had KV that its replica's GPUs lacked, each time it was looked for and
    then loaded or computed again, in the order in which that began.

    `tokens` were found at `found_ns`. They were computed again if `bytes` is 0; else that much was loaded, by
    `loaded_ns` (-1 if the run ended first).
    """

    request: Ints
    replica: Ints
    tokens: Ints
    found_ns: Ints
    loaded_ns: Ints
    bytes: Ints


@dataclass(frozen=True, slots=True)
class ReplicaColumns:
    """One row a change of a replica's state, by replica and in time: `replica` is in `state` from `since_ns` on.

    Replicas are numbered through, pool after pool. The first row of each is at 0.
    """

    replica: Ints
    state: Ints
    since_ns: Ints


@dataclass(frozen=True, slots=True)
class TierFacts:
    """The CPU memory of replica `replica`: its blocks, how many were written and dropped, the bytes of one, and what
    the link to it carries."""

    replica: int
    blocks: int
    written: int
    dropped: int
    block_bytes: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool of equal replicas. Its engine cores have the numbers from `first` on, and its replicas, each with the same
    number of cores, those behind the replicas of the pools before. `gpus` are those of all replicas, `kv_blocks` those
    of one core.

    `stall_told`: is what chunks add to steps with decodes known? Not so of pipelines, and of ranks that step together.
    """

    name: str
    role: str
    first: int
    replicas: int
    cores: int
    gpus: int
    kv_blocks: int
    block_size: int
    stall_told: bool = True


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run. `start_ns` is the first arrival, `end_ns` the last event; `complete` is False after Ctrl-C.

    A request's `replica` is the one that brought its last tokens; with `transfers`, another one computed its prompt.
    `event_tokens` has, segment after segment, how many tokens each of its steps brought, an event of the client's
    stream; it is empty where that is always one, as without speculation.
    """

    requests: RequestColumns
    segments: SegmentColumns
    preemptions: PreemptionColumns
    steps: StepColumns
    transfers: TransferColumns
    offload: OffloadColumns
    drafts: DraftColumns
    draft_positions: DraftPositions
    replica_states: ReplicaColumns
    event_tokens: Ints
    pools: tuple[PoolFacts, ...]
    tiers: tuple[TierFacts, ...]
    class_names: tuple[str, ...]
    start_ns: int
    end_ns: int
    complete: bool

    @property
    def cores(self) -> int:
        """Engine cores of all pools."""
        return sum(pool.cores for pool in self.pools)

    @property
    def duration_ns(self) -> int:
        """From the first arrival to the last event."""
        return self.end_ns - self.start_ns

    def replica_ns(self, pool: PoolFacts) -> int:
        """The time in which replicas of a pool had their GPUs, added up: that in all states but DOWN."""
        first = sum(each.replicas for each in self.pools[: self.pools.index(pool)])
        rows = self.replica_states
        until = np.append(np.minimum(rows.since_ns[1:], self.end_ns), self.end_ns)
        until[np.append(rows.replica[1:] != rows.replica[:-1], True)] = self.end_ns
        spans = until - np.maximum(rows.since_ns, self.start_ns)
        mine = (rows.replica >= first) & (rows.replica < first + pool.replicas) & (rows.state != ReplicaState.DOWN)
        return int(np.maximum(spans[mine], 0).sum())

    @property
    def core_time_ns(self) -> int:
        """The time of all engine cores, added up."""
        return sum(self.core_ns(pool) for pool in self.pools)

    @property
    def gpu_time_ns(self) -> int:
        """The time of all GPUs, added up."""
        return sum(self.gpu_ns(pool) for pool in self.pools)

    def core_ns(self, pool: PoolFacts) -> int:
        """The same of its engine cores."""
        return self.replica_ns(pool) * (pool.cores // pool.replicas)

    def gpu_ns(self, pool: PoolFacts) -> int:
        """The same of its GPUs."""
        return self.replica_ns(pool) * (pool.gpus // pool.replicas)

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def speculates(self) -> bool:
        """Whether any replica verifies drafts."""
        return len(self.draft_positions.replica) > 0

    def kv_blocks(self) -> Ints:
        """The KV blocks of each replica."""
        return np.repeat([pool.kv_blocks for pool in self.pools], [pool.cores for pool in self.pools])

    def kv_use(self) -> NDArray[np.float64]:
        """The share of its replica's KV blocks that is in use, by step."""
        blocks = self.kv_blocks()
        if np.all(blocks == blocks[0]):
            return np.asarray(self.steps.kv_used / blocks[0])
        return np.asarray(self.steps.kv_used / np.repeat(blocks, np.diff(self.steps.offsets)))

    def rows(self, pool: PoolFacts) -> slice:
        """The rows of `steps` that are those of a pool's replicas."""
        return slice(int(self.steps.offsets[pool.first]), int(self.steps.offsets[pool.first + pool.cores]))


def segment_rows(segments: SegmentColumns, steps: StepColumns) -> tuple[Ints, Ints]:
    """The rows of `steps` that are each segment's first and last step."""
    base = np.asarray(steps.offsets, np.int64)[segments.replica]
    return base + segments.first_step, base + segments.last_step


def segment_events(segments: SegmentColumns, steps: StepColumns) -> Ints:
    """How many steps bring each segment something: an event of the client's stream each."""
    first, last = segment_rows(segments, steps)
    if not len(steps.paused):
        return last - first + 1
    skipped = np.searchsorted(steps.paused, last, "right") - np.searchsorted(steps.paused, first, "right")
    return last - first + 1 - skipped


def segment_tokens(segments: SegmentColumns, steps: StepColumns, event_tokens: Ints) -> Ints:
    """How many tokens each segment brings; `event_tokens` as in `RunRecord`."""
    events = segment_events(segments, steps)
    if not len(event_tokens):
        return events
    brought = np.concatenate([[0], np.cumsum(event_tokens, dtype=np.int64)])
    after = np.cumsum(events)
    return np.asarray(brought[after] - brought[after - events])
