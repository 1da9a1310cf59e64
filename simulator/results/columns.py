"""The tables of a run: append-only typed columns, and the codes of states in them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]
C = TypeVar("C", "RequestColumns", "SegmentColumns", "PreemptionColumns", "TransferColumns")


class Status(IntEnum):
    """State of a request at the end of the run. A request ends at most once; NOT_ARRIVED and IN_FLIGHT are no ends.

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
    """Reason for which a request was refused on arrival. NO_REPLICA: no replica was open to it."""

    NONE = 0
    CONTEXT_LIMIT = 1
    KV_POOL = 2
    NO_REPLICA = 3


class ReplicaState(IntEnum):
    """State of a replica. Its GPUs are in use in all states except DOWN; it gets requests only in state UP."""

    DOWN = 0
    STARTING = 1
    UP = 2
    DRAINING = 3


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """One row per request, in request order. Times are ns of the simulated clock, -1 if they were not reached.

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


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """Token times as ranges of steps, without a number per token.

    Request `request` got a token at the end of each of its replica's steps from `first_step` to `last_step`, both
    included, except for steps after the first in which decodes were paused.

    With speculation a step may deliver several tokens at once (`RunRecord.event_tokens`). A request has one segment,
    and another one after each preemption or pause. Rows are in request order, and those of one request in order of
    time; steps are numbered within the replica, from 0. The last step of a segment is not a paused one, unless it is
    also the first.
    """

    request: Ints
    replica: Ints
    first_step: Ints
    last_step: Ints


@dataclass(frozen=True, slots=True, eq=False)
class PreemptionColumns:
    """One row per preemption, in order of time on each replica.

    Request `request` was preempted at `preempted_ns`, when a step was formed without it, and was scheduled again at
    `resumed_ns`, -1 if it never was.
    """

    request: Ints
    preempted_ns: Ints
    resumed_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """One row per step (iteration), replica after replica: those of replica r are rows offsets[r] to offsets[r + 1].

    The step was formed at `sched_ns`, and the device ran it from `start_ns` to `end_ns`, which never decreases within a
    replica. It computed `decodes` and `prefill_tokens`; after it was formed, `running` and `waiting` sequences and
    `kv_used` KV blocks in use were counted. `stall_ns` is the delay of its decodes by its prefill chunks: 0 in a step
    that does not have both. `paused` lists the rows, in order, in which no running decode advanced.
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


@dataclass(frozen=True, slots=True, eq=False)
class DraftColumns:
    """One row per step in which drafts were verified or proposed, in the order of `StepColumns`, whose row is `step`.

    `draft_tokens` were verified, placeholders of vLLM's padding included; `draft_ns` is the part of the step's time
    that speculation adds to the target's kernels: proposing, and rejection sampling.
    """

    step: Ints
    draft_tokens: Ints
    draft_ns: Ints


@dataclass(frozen=True, slots=True, eq=False)
class DraftPositions:
    """One row per speculating replica and draft depth, from 0.

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


@dataclass(frozen=True, slots=True, eq=False)
class TransferColumns:
    """One row per transferred request, in order of arrival. Times are ns, -1 if they were not reached.

    Replica `source` computed the prompt, and its KV was transferred to `target`.

    The prefill ends at `prefill_end_ns`; the target has reserved blocks at `reserved_ns`; the transfer starts at
    `start_ns`, set-up included, and its last byte arrives at `arrived_ns`; at `joined_ns` the target forms the first
    step with the request. `bytes` were sent, those of failed transfers included; `recomputed` is 1 if the target
    computed the prompt, since all tries failed.
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


@dataclass(frozen=True, slots=True, eq=False)
class OffloadColumns:
    """One row per hit in CPU memory, in order of time: missing KV of a request was found there.

    `tokens` were found at `found_ns`. If `bytes` is 0 they were recomputed; else `bytes` were loaded by `loaded_ns`
    (-1 if the run ended first).
    """

    request: Ints
    replica: Ints
    tokens: Ints
    found_ns: Ints
    loaded_ns: Ints
    bytes: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaColumns:
    """One row per change of a replica's state, by replica and in order of time.

    `replica` is in `state` from `since_ns` on. Replicas are numbered across pools. The first row of each is at 0.
    """

    replica: Ints
    state: Ints
    since_ns: Ints


def part(columns: C, rows: slice | NDArray[np.bool_]) -> C:
    """Return some rows of a table whose columns all have one length."""
    return type(columns)(*(getattr(columns, field.name)[rows] for field in fields(columns)))
