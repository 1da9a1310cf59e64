"""Token times out of segments: in which step rows they lie, of one request or of all of them.

An event is what a step brings to a request: a token, or with speculation several at the same time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import RunRecord, segment_events, segment_rows

Rows = NDArray[np.integer]

_EVENTS_AT_ONCE = 1 << 20


def consecutive_segments(record: RunRecord) -> tuple[Rows, Rows]:
    """Pairs of segments of which the second follows the first in the same request, as two arrays of indices."""
    request = record.segments.request
    several = np.bincount(request, minlength=len(record.requests.status)) > 1
    rows = np.flatnonzero(several[request])
    rows = rows[np.argsort(request[rows], kind="stable")]
    same = request[rows[:-1]] == request[rows[1:]]
    return rows[:-1][same], rows[1:][same]


def tokens_per_step(record: RunRecord) -> NDArray[np.int64]:
    """How many tokens each step delivered."""
    first, last = segment_rows(record.segments, record.steps)
    rows = len(record.steps.end_ns) + 1
    begun = np.bincount(first, minlength=rows)
    tokens = np.cumsum(begun - np.bincount(last + 1, minlength=rows))
    paused = record.steps.paused
    tokens[paused] = begun[paused]
    if len(record.event_tokens):
        _, row, more = further_tokens(record)
        tokens += np.bincount(row, more, rows).astype(np.int64)
    return tokens[:-1]


def token_times(record: RunRecord, request: int) -> NDArray[np.int64]:
    """When each token of one request was delivered, in ns."""
    ends = np.asarray(record.steps.end_ns, np.int64)
    mine = np.flatnonzero(record.segments.request == request)
    return np.concatenate([ends[:0], *(_by_token(ends[events.row], events) for events in events_of(record, mine))])


def token_time_digest(record: RunRecord) -> str:
    """The SHA-256 of all token times, request after request, as little-endian 64-bit integers."""
    ends = np.asarray(record.steps.end_ns, "<i8")
    digest = hashlib.sha256()
    for events in events_of(record, np.argsort(record.segments.request, kind="stable")):
        digest.update(_by_token(ends[events.row], events).tobytes())
    return digest.hexdigest()


def further_tokens(record: RunRecord) -> tuple[Rows, Rows, Rows]:
    """Of events with more than one token: the request, the row of steps, and how many there are beside the first."""
    request: list[Rows] = [record.segments.request[:0]]
    row: list[Rows] = [np.zeros(0, np.int64)]
    more: list[Rows] = [record.event_tokens[:0]]
    for events in events_of(record, np.arange(len(record.segments.request))) if len(record.event_tokens) else ():
        several = np.flatnonzero(events.tokens > 1)
        request.append(record.segments.request[events.segment[several]])
        row.append(events.row[several])
        more.append(events.tokens[several] - 1)
    return np.concatenate(request), np.concatenate(row), np.concatenate(more)


class Events(NamedTuple):
    """The events of some segments, one segment after the other: the row of steps of each, and where not every event of
    the run is one token, its tokens and its segment (else both are empty)."""

    row: Rows
    tokens: Rows
    segment: Rows


def events_of(record: RunRecord, segments: Rows) -> Iterator[Events]:
    """The events of these segments, about a million at once."""
    first, last = (rows[segments] for rows in segment_rows(record.segments, record.steps))
    passed = np.cumsum(last - first + 1)
    several = len(record.event_tokens) > 0
    begins, counts = (column[segments] for column in _event_ranges(record)) if several else (first[:0], first[:0])
    done = 0
    while done < len(segments):
        before = int(passed[done - 1]) if done else 0
        upto = max(done + 1, int(np.searchsorted(passed, before + _EVENTS_AT_ONCE, "right")))
        some = slice(done, upto)
        rows = _token_rows(first[some], last[some], record.steps.paused)
        of = np.repeat(segments[some], counts[some]) if several else segments[:0]
        yield Events(rows, record.event_tokens[_ranges(begins[some], counts[some])], of)
        done = upto


def _event_ranges(record: RunRecord) -> tuple[Rows, Rows]:
    """Where each segment's events begin in `event_tokens`, and how many they are."""
    counts = segment_events(record.segments, record.steps)
    return np.cumsum(counts) - counts, counts


def _by_token(values: NDArray[np.int64], events: Events) -> NDArray[np.int64]:
    """A value an event as one a token."""
    return np.repeat(values, events.tokens) if len(events.tokens) else values


def _token_rows(first: Rows, last: Rows, paused: Rows) -> Rows:
    """The rows in which segments from `first` to `last` bring something, one segment after the other."""
    lengths = last - first + 1
    rows = _ranges(first, lengths)
    if not len(paused):
        return rows
    brings = ~np.isin(rows, paused)
    brings[np.cumsum(lengths) - lengths] = True
    return rows[brings]


def _ranges(first: Rows, lengths: Rows) -> Rows:
    """The whole numbers from each first one on, so many, one range after the other."""
    rows: Rows = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    return rows
