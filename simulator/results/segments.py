"""Token times from segments: the rows of the step log at which requests get tokens.

An event is the output of one step for one request: one token, or with speculation one or more tokens at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import RunRecord, pieces, segment_events, segment_rows

Rows = NDArray[np.integer]


def consecutive_segments(record: RunRecord) -> tuple[Rows, Rows]:
    """Return pairs of successive segments of the same request, as two arrays of indices."""
    request = record.segments.request
    several = np.bincount(request, minlength=len(record.requests.status)) > 1
    rows = np.flatnonzero(several[request])
    rows = rows[np.argsort(request[rows], kind="stable")]
    same = request[rows[:-1]] == request[rows[1:]]
    return rows[:-1][same], rows[1:][same]


def tokens_per_step(record: RunRecord) -> NDArray[np.int64]:
    """Return the number of tokens that each step delivered."""
    first, last = segment_rows(record.segments, record.steps)
    rows = len(record.steps.end_ns) + 1
    begun = np.bincount(first, minlength=rows)
    tokens = np.cumsum(begun - np.bincount(last + 1, minlength=rows))[:-1]
    paused = record.steps.paused
    tokens[paused] = begun[paused]
    return tokens + further_tokens(record, np.arange(len(first)))


def token_times(record: RunRecord, request: int) -> NDArray[np.int64]:
    """Return the delivery time of each token of one request, in ns."""
    ends = np.asarray(record.steps.end_ns, np.int64)
    selected = np.flatnonzero(record.segments.request == request)
    return np.concatenate([ends[:0], *(_by_token(ends[events.row], events) for events in events_of(record, selected))])


def token_time_digest(record: RunRecord) -> str:
    """Return the SHA-256 of all token times, request after request, as little-endian 64-bit integers."""
    import hashlib

    ends = np.asarray(record.steps.end_ns, "<i8")
    digest = hashlib.sha256()
    for events in events_of(record, np.argsort(record.segments.request, kind="stable")):
        digest.update(_by_token(ends[events.row], events).tobytes())
    return digest.hexdigest()


def further_tokens(record: RunRecord, segments: Rows) -> NDArray[np.int64]:
    """Return, by row of the step log, how many tokens of these segments came with another one of the same event."""
    tokens = np.zeros(len(record.steps.end_ns), np.int64)
    if not len(record.event_tokens):
        return tokens
    # The rows of some segments of one replica are near each other, and so are the sums.
    by_replica = segments[np.argsort(record.segments.replica[segments], kind="stable")]
    for events in events_of(record, by_replica):
        low = int(events.row.min())
        sums = np.bincount(events.row - low, events.tokens - 1)
        tokens[low : low + len(sums)] += sums.astype(np.int64)
    return tokens


class Events(NamedTuple):
    """The events of some segments, segment after segment: the step row of each, its number of tokens and its segment.

    `tokens` and `segment` are empty if each event of the run is one token.
    """

    row: Rows
    tokens: Rows
    segment: Rows


def events_of(record: RunRecord, segments: Rows) -> Iterator[Events]:
    """Yield the events of these segments, some at a time."""
    first, last = (rows[segments] for rows in segment_rows(record.segments, record.steps))
    several = len(record.event_tokens) > 0
    begins, counts = (column[segments] for column in _event_ranges(record)) if several else (first[:0], first[:0])
    for some in pieces(np.cumsum(last - first + 1)):
        rows = _token_rows(first[some], last[some], record.steps.paused)
        of = np.repeat(segments[some], counts[some]) if several else segments[:0]
        yield Events(rows, record.event_tokens[_ranges(begins[some], counts[some])], of)


def _event_ranges(record: RunRecord) -> tuple[Rows, Rows]:
    """Return the index in `event_tokens` of each segment's first event, and its number of events."""
    counts = segment_events(record.segments, record.steps)
    return np.cumsum(counts) - counts, counts


def _by_token(values: NDArray[np.int64], events: Events) -> NDArray[np.int64]:
    """Repeat a value per event for each of its tokens."""
    return np.repeat(values, events.tokens) if len(events.tokens) else values


def _token_rows(first: Rows, last: Rows, paused: Rows) -> Rows:
    """Return the rows in which segments from `first` to `last` get tokens, segment after segment."""
    lengths = last - first + 1
    rows = _ranges(first, lengths)
    if not len(paused):
        return rows
    delivers = ~np.isin(rows, paused)
    delivers[np.cumsum(lengths) - lengths] = True
    return rows[delivers]


def _ranges(first: Rows, lengths: Rows) -> Rows:
    """Return the ranges of integers that start at `first` and have these lengths, one after the other."""
    rows: Rows = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    return rows
