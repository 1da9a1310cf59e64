"""Invariants of every record, for tests and for runs with `run.checks`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simulator.results.attribution import attribute
from simulator.results.columns import Refusal, Status
from simulator.results.record import RunRecord, segment_events, segment_rows, tokens_by_request
from simulator.results.segments import consecutive_segments


def check(record: RunRecord) -> None:
    """Verify the conservation of requests and tokens, the order of times, and the bounds of memory.

    Raises:
        AssertionError: an invariant is violated; the message has it and the first row that violates it.
    """
    _check_ends(record)
    _check_times(record)
    _check_steps(record)
    _check_tokens(record)
    _check_preemptions(record)
    _check_parts(record)
    _check_offload(record)
    _check_drafts(record)


def _check_ends(record: RunRecord) -> None:
    requests = record.requests
    completed = requests.status == Status.COMPLETED
    rejected = requests.status == Status.REJECTED
    _require("a request ends when it is completed", completed == (requests.finish_ns >= 0))
    _require("refused requests have a reason, and others have none", rejected == (requests.refusal != Refusal.NONE))
    _require("a refused request gets no token", ~rejected | (requests.emitted_tokens == 0))
    _require("a completed request gets a token", ~completed | (requests.emitted_tokens > 0))
    _require("no more tokens than output_tokens", requests.emitted_tokens <= requests.output_tokens)


def _check_times(record: RunRecord) -> None:
    requests = record.requests
    moments = {
        "client": requests.client_ns,
        "arrival": requests.arrival_ns,
        "scheduled": requests.scheduled_ns,
        "first token": requests.first_token_ns,
        "finish": requests.finish_ns,
    }
    for (before, early), (after, late) in pairwise(moments.items()):
        _require(f"{before} comes before {after}", (late < 0) | ((early >= 0) & (early <= late)))


def _check_tokens(record: RunRecord) -> None:
    requests, segments, ends = record.requests, record.segments, np.asarray(record.steps.end_ns)
    first, last = segment_rows(segments, record.steps)
    _require("a segment has a token", first <= last)
    _require("a segment ends with a token", (first == last) | ~np.isin(last, record.steps.paused))
    events = int(segment_events(segments, record.steps).sum())
    _require("every event has a number of tokens", np.array([len(record.event_tokens) in (0, events)]))
    _require("an event delivers a token", record.event_tokens > 0)
    before, after = consecutive_segments(record)
    _require("segments of a request follow in time", ends[last[before]] <= ends[first[after]])
    tokens = tokens_by_request(segments, record.steps, record.event_tokens, len(requests.status))
    _require("segments have the delivered tokens", tokens == requests.emitted_tokens)
    starts = np.full(len(tokens), -1, np.int64)
    stops = starts.copy()
    starts[segments.request[::-1]] = ends[first[::-1]]  # of several segments, the first row is written last
    stops[segments.request] = ends[last]
    _require("the first token is the first segment's", starts == requests.first_token_ns)
    _require("the last token is the finish", (requests.status != Status.COMPLETED) | (stops == requests.finish_ns))


def _check_preemptions(record: RunRecord) -> None:
    requests, lost = record.requests, record.preemptions
    counted = np.bincount(lost.request, minlength=len(requests.status))
    _require("every preemption has its time", counted == requests.preemptions)
    scheduled = requests.scheduled_ns[lost.request]
    _require("a preempted request was scheduled before", (scheduled >= 0) & (scheduled <= lost.preempted_ns))
    _require(
        "a request is resumed after it was preempted", (lost.resumed_ns < 0) | (lost.preempted_ns <= lost.resumed_ns)
    )


def _check_parts(record: RunRecord) -> None:
    requests, parts = record.requests, attribute(record)
    for name, part in parts.items():
        _require(f"no time is negative: {name}", part >= 0)
    completed = requests.status == Status.COMPLETED
    e2e_ns = np.where(completed, requests.finish_ns - requests.arrival_ns, 0)
    _require("the parts of a request's time add up", np.sum(list(parts.values()), axis=0) == e2e_ns)


def _check_steps(record: RunRecord) -> None:
    steps = record.steps
    _require("a step starts after it was formed", steps.sched_ns <= steps.start_ns)
    _require("a step ends after it started", steps.start_ns <= steps.end_ns)
    _require(
        "chunks prolong a step by no more than its duration",
        (steps.stall_ns >= 0) & (steps.stall_ns <= steps.end_ns - steps.sched_ns),
    )
    _require("a paused step has no decodes", steps.decodes[steps.paused] == 0)
    _require("KV blocks in use exist", (steps.kv_used >= 0) & (record.kv_use() <= 1))
    in_order = np.diff(np.asarray(steps.end_ns, np.int64)) >= 0
    boundaries = np.asarray(steps.offsets[1:-1], np.int64) - 1
    in_order[boundaries[(boundaries >= 0) & (boundaries < len(in_order))]] = True
    _require("steps of a replica end in order", in_order)


def _check_offload(record: RunRecord) -> None:
    found = record.offload
    _require("a hit in CPU memory has tokens", found.tokens > 0)
    _require("a load begins when its blocks are found", (found.loaded_ns < 0) | (found.loaded_ns >= found.found_ns))
    _require("a load has bytes", (found.loaded_ns < 0) | (found.bytes > 0))


def _check_drafts(record: RunRecord) -> None:
    drafts, depths = record.drafts, record.draft_positions
    steps = record.steps
    _require("a step drafts once", np.diff(drafts.step) > 0)
    _require("drafting takes no longer than its step", drafts.draft_ns <= (steps.end_ns - steps.sched_ns)[drafts.step])
    _require("a sequence at a depth has a draft of it", depths.sequences <= depths.drafts)
    _require("a depth is reached where drafts of it are", depths.reached <= depths.sequences)
    _require("the first depth is always reached", (depths.depth > 0) | (depths.reached == depths.sequences))
    _require("a sequence that reached a depth accepts one draft of it, or none", depths.accepted <= depths.reached)
    deeper = (depths.depth[1:] > depths.depth[:-1]) & (depths.replica[1:] == depths.replica[:-1])
    _require(
        "a depth is reached by sequences with accepted drafts before it",
        ~deeper | (depths.reached[1:] <= depths.accepted[:-1]),
    )


def _require(invariant: str, holds: NDArray[np.bool_]) -> None:
    if not np.all(holds):
        raise AssertionError(f"{invariant}: violated in row {int(np.argmin(holds))} of {len(holds)}")
