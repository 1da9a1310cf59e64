"""The record of a run: typed columns, the only data that `results` has of a simulation."""

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
    """One row a request, in request order. Times are ns of the simulated clock, -1 for times that never came.

    `arrival_ns` is the arrival at the service; `client_ns` is the time at which the client wanted to send, which is
    earlier if a limit of concurrency on the client's side delayed sending. `scheduled_ns` is the first time at which a
    step was formed with the request; `first_token_ns` and `finish_ns` are the times of its first and last token.
    `emitted_tokens` counts delivered tokens, also of requests that did not finish. `preemptions` and
    `recomputed_tokens` (computed tokens that were discarded) are per request. `queried_tokens` were looked up in the
    prefix cache when the request was first admitted, and `cached_tokens` of them found; `recovered_tokens` were found
    when it was resumed after a preemption.
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
    """Token times without a number per token: request `request` got a token at the end of each of its replica's steps
    from `first_step` to `last_step`, both included, except for steps after the first in which decodes were paused.

    With speculation a step may deliver several tokens at once (`RunRecord.event_tokens`). A request has one segment,
    and another one after each preemption or pause. Rows are in request order, and those of one request in order of
    time; steps are numbered within the replica, from 0. The last step of a segment is not a paused one, unless it is
    also the first.
    """

    request: Ints
    replica: Ints
    first_step: Ints
    last_step: Ints


@dataclass(frozen=True, slots=True)
class PreemptionColumns:
    """One row a preemption, in order of time on each replica.

    Request `request` was preempted at `preempted_ns`, when a step was formed without it, and was scheduled again at
    `resumed_ns`, -1 if it never was.
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
    that speculation adds to the target's kernels: proposing, and rejection sampling.
    """

    step: Ints
    draft_tokens: Ints
    draft_ns: Ints


@dataclass(frozen=True, slots=True)
class DraftPositions:
    """One row a speculating replica and draft depth, from 0.

    `sequences` counts, over all steps, the sequences with drafts at that depth, and `drafts` these drafts (more than
    one a sequence in a tree). `reached` counts the sequences for which all drafts before the depth were accepted, and
    `accepted` those for which one at the depth was accepted as well. Padding does not count. A level of a tree counts
    even if it is truncated, and acceptance counts even if the request ended before it.
    """

    replica: Ints
    depth: Ints
    sequences: Ints
    drafts: Ints
    reached: Ints
    accepted: Ints


@dataclass(frozen=True, slots=True)
class TransferColumns:
    """One row a request whose KV was transferred from replica `source`, which computed its prompt, to `target`, in
    order of arrival. Times are ns, -1 for times that never came.

    The prefill ends at `prefill_end_ns`; the target has reserved blocks at `reserved_ns`; the transfer starts at
    `start_ns`, set-up included, and its last byte arrives at `arrived_ns`; at `joined_ns` the target forms the first
    step with the request. `bytes` were sent, those of failed transfers included; `recomputed` is 1 if the target
    computed the prompt in the end.
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
    """One row a hit in CPU memory, each time a request's missing KV was found there and then loaded or recomputed, in
    order of time.

    `tokens` were found at `found_ns`. If `bytes` is 0 they were recomputed; else so many bytes were loaded by
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
    """One row a change of a replica's state, by replica and in order of time: `replica` is in `state` from `since_ns`
    on.

    Replicas are numbered across pools. The first row of each is at 0.
    """

    replica: Ints
    state: Ints
    since_ns: Ints


@dataclass(frozen=True, slots=True)
class TierFacts:
    """The CPU memory of replica `replica`: its blocks, the numbers of blocks written and dropped, the bytes of a block,
    and the rate of its link.
    """

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

    A request's `replica` is the one that delivered its last tokens; with `transfers`, another one computed its prompt.
    `event_tokens` has, segment after segment, the number of tokens that each of its steps delivered: an event of the
    client's stream. It is empty if each event is one token, as without speculation.
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
        """Return the KV blocks of each engine core."""
        return np.repeat([pool.kv_blocks for pool in self.pools], [pool.cores for pool in self.pools])

    def kv_use(self) -> NDArray[np.float64]:
        """Return by step the share of its replica's KV blocks in use."""
        blocks = self.kv_blocks()
        if np.all(blocks == blocks[0]):
            return np.asarray(self.steps.kv_used / blocks[0])
        return np.asarray(self.steps.kv_used / np.repeat(blocks, np.diff(self.steps.offsets)))

    def rows(self, pool: PoolFacts) -> slice:
        """Return the rows of `steps` of a pool's engine cores."""
        return slice(int(self.steps.offsets[pool.first]), int(self.steps.offsets[pool.first + pool.cores]))


def segment_rows(segments: SegmentColumns, steps: StepColumns) -> tuple[Ints, Ints]:
    """Return the rows of `steps` of each segment's first and last step."""
    base = np.asarray(steps.offsets, np.int64)[segments.replica]
    return base + segments.first_step, base + segments.last_step


def segment_events(segments: SegmentColumns, steps: StepColumns) -> Ints:
    """Return the number of events of each segment: steps that delivered tokens to it."""
    first, last = segment_rows(segments, steps)
    if not len(steps.paused):
        return last - first + 1
    skipped = np.searchsorted(steps.paused, last, "right") - np.searchsorted(steps.paused, first, "right")
    return last - first + 1 - skipped


def segment_tokens(segments: SegmentColumns, steps: StepColumns, event_tokens: Ints) -> Ints:
    """Return the number of tokens of each segment; `event_tokens` as in `RunRecord`."""
    events = segment_events(segments, steps)
    if not len(event_tokens):
        return events
    brought = np.concatenate([[0], np.cumsum(event_tokens, dtype=np.int64)])
    after = np.cumsum(events)
    return np.asarray(brought[after] - brought[after - events])
