"""The record of a run: typed columns, the only input of `results` from a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import chunks, zeros
from simulator.results.columns import (
    DraftColumns,
    DraftPositions,
    Ints,
    OffloadColumns,
    PreemptionColumns,
    ReplicaColumns,
    ReplicaState,
    RequestColumns,
    SegmentColumns,
    StepColumns,
    TransferColumns,
    part,
)

#: Number of events in a piece, so that arrays of a piece fit the CPU's cache.
_EVENTS_AT_ONCE = 1 << 17


R = TypeVar("R", SegmentColumns, PreemptionColumns, TransferColumns)


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
    """A pool of equal replicas, each with the same number of engine cores.

    The cores are numbered from `first` on; cores and replicas are numbered across pools. `gpus` is the number of GPUs
    of all replicas, `kv_blocks` that of one core's KV blocks. `records_stalls` says whether the time that chunks add to
    decodes is recorded: not for pipelines, and not for ranks that step together.
    """

    name: str
    role: str
    first: int
    replicas: int
    cores: int
    gpus: int
    kv_blocks: int
    block_size: int
    records_stalls: bool = True


@dataclass(frozen=True, slots=True, eq=False)
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
        """Number of engine cores of all pools."""
        return sum(pool.cores for pool in self.pools)

    @property
    def duration_ns(self) -> int:
        """Time from the first arrival to the last event."""
        return self.end_ns - self.start_ns

    def replica_ns(self, pool: PoolFacts) -> int:
        """Return the total time in which replicas of a pool had GPUs: the time in all states but DOWN."""
        first = sum(each.replicas for each in self.pools[: self.pools.index(pool)])
        rows = self.replica_states
        until = np.append(np.minimum(rows.since_ns[1:], self.end_ns), self.end_ns)
        until[np.append(rows.replica[1:] != rows.replica[:-1], True)] = self.end_ns
        spans = until - np.maximum(rows.since_ns, self.start_ns)
        mine = (rows.replica >= first) & (rows.replica < first + pool.replicas) & (rows.state != ReplicaState.DOWN)
        return int(np.maximum(spans[mine], 0).sum())

    @property
    def core_time_ns(self) -> int:
        """Total time of the engine cores of all pools."""
        return sum(self.core_ns(pool) for pool in self.pools)

    @property
    def gpu_time_ns(self) -> int:
        """Total time of the GPUs of all pools."""
        return sum(self.gpu_ns(pool) for pool in self.pools)

    def core_ns(self, pool: PoolFacts) -> int:
        """Return the total time in which engine cores of a pool had GPUs."""
        return self.replica_ns(pool) * (pool.cores // pool.replicas)

    def gpu_ns(self, pool: PoolFacts) -> int:
        """Return the total time in which GPUs of a pool belonged to a replica."""
        return self.replica_ns(pool) * (pool.gpus // pool.replicas)

    @property
    def gpus(self) -> int:
        """Number of GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    def by_requests(self) -> Iterator[tuple[slice, RunRecord]]:
        """Yield slices of the requests, in order, and the record of each alone: its rows of all tables by request.

        Requests are numbered from 0 in each. The tables of steps and of replicas are those of the whole run.
        """
        for rows in chunks(len(self.requests.status)):
            yield (
                rows,
                replace(
                    self,
                    requests=part(self.requests, rows),
                    segments=_of_requests(self.segments, rows),
                    preemptions=_of_requests(self.preemptions, rows),
                    transfers=_of_requests(self.transfers, rows),
                ),
            )

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


def _of_requests(columns: R, rows: slice) -> R:
    """Return the rows of a table that belong to these requests, numbered from 0."""
    some = part(columns, (columns.request >= rows.start) & (columns.request < rows.stop))
    return replace(some, request=some.request - rows.start)


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
    after = np.cumsum(events)
    if len(events) and after[-1] > len(event_tokens):
        raise IndexError(f"expected the tokens of {after[-1]} events, found {len(event_tokens)}")
    tokens = np.zeros(len(events), np.int64)
    for some in pieces(after):
        begins = after[some] - events[some]
        of_these = event_tokens[begins[0] : after[some][-1]]
        np.add.reduceat(of_these, begins - begins[0], dtype=np.int64, out=tokens[some])
    return tokens


def tokens_by_request(segments: SegmentColumns, steps: StepColumns, event_tokens: Ints, requests: int) -> Ints:
    """Return the number of tokens delivered to each request, shape (requests,); `event_tokens` as in `RunRecord`."""
    delivered = zeros(requests, np.int64)
    if len(event_tokens):
        np.add.at(delivered, segments.request, segment_tokens(segments, steps, event_tokens))
        return delivered
    for rows in chunks(len(segments.request)):
        some = part(segments, rows)
        np.add.at(delivered, some.request, segment_events(some, steps))
    return delivered


def pieces(upto: Ints) -> Iterator[slice]:
    """Yield the rows of a table in pieces of a limited number of events; `upto` are the events up to each row's end."""
    done, passed = 0, 0
    while done < len(upto):
        end = max(done + 1, int(np.searchsorted(upto, passed + _EVENTS_AT_ONCE, "right")))
        yield slice(done, end)
        done, passed = end, int(upto[end - 1])
