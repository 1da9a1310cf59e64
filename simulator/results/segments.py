"""Token times out of segments: in which step rows they lie, of one request or of all of them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import RunRecord, segment_rows

Rows = NDArray[np.integer]

_TOKENS_AT_ONCE = 1 << 20


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
    return tokens[:-1]


def token_times(record: RunRecord, request: int) -> NDArray[np.int64]:
    """When each token of one request was delivered, in ns."""
    mine = np.flatnonzero(record.segments.request == request)
    first, last = segment_rows(record.segments, record.steps)
    return np.asarray(record.steps.end_ns, np.int64)[_token_rows(first[mine], last[mine], record.steps.paused)]


def token_time_digest(record: RunRecord) -> str:
    """The SHA-256 of all token times, request after request, as little-endian 64-bit integers."""
    order = np.argsort(record.segments.request, kind="stable")
    first, last = (rows[order] for rows in segment_rows(record.segments, record.steps))
    passed = np.cumsum(last - first + 1)
    ends = np.asarray(record.steps.end_ns, "<i8")
    digest = hashlib.sha256()
    done = 0
    while done < len(order):
        before = int(passed[done - 1]) if done else 0
        upto = max(done + 1, int(np.searchsorted(passed, before + _TOKENS_AT_ONCE, "right")))
        digest.update(ends[_token_rows(first[done:upto], last[done:upto], record.steps.paused)].tobytes())
        done = upto
    return digest.hexdigest()


def _token_rows(first: Rows, last: Rows, paused: Rows) -> Rows:
    """The rows in which segments from `first` to `last` bring a token, one segment after the other."""
    lengths = last - first + 1
    begins = np.cumsum(lengths) - lengths
    rows: Rows = np.repeat(first - begins, lengths) + np.arange(lengths.sum())
    if not len(paused):
        return rows
    brings = ~np.isin(rows, paused)
    brings[begins] = True
    return rows[brings]
