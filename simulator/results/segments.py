"""Token times out of segments: which step rows they cover, and what that says about one request or all of them."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from simulator.results.record import RunRecord

Rows = NDArray[np.integer]

_TOKENS_AT_ONCE = 1 << 20


def segment_rows(record: RunRecord) -> tuple[Rows, Rows]:
    """The rows of `record.steps` that are each segment's first and last step."""
    segments = record.segments
    base = np.asarray(record.steps.offsets, np.int64)[segments.replica]
    return base + segments.first_step, base + segments.last_step


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
    first, last = segment_rows(record)
    rows = len(record.steps.end_ns) + 1
    return np.cumsum(np.bincount(first, minlength=rows) - np.bincount(last + 1, minlength=rows))[:-1]


def token_times(record: RunRecord, request: int) -> NDArray[np.int64]:
    """When each token of one request was delivered, in ns."""
    mine = np.flatnonzero(record.segments.request == request)
    first, last = segment_rows(record)
    return np.asarray(record.steps.end_ns, np.int64)[_expanded(first[mine], last[mine])]


def token_time_digest(record: RunRecord) -> str:
    """The SHA-256 of all token times, request after request, as little-endian 64-bit integers."""
    order = np.argsort(record.segments.request, kind="stable")
    first, last = (rows[order] for rows in segment_rows(record))
    tokens = np.cumsum(last - first + 1)
    ends = np.asarray(record.steps.end_ns, "<i8")
    digest = hashlib.sha256()
    done = 0
    while done < len(order):
        before = int(tokens[done - 1]) if done else 0
        upto = max(done + 1, int(np.searchsorted(tokens, before + _TOKENS_AT_ONCE, "right")))
        digest.update(ends[_expanded(first[done:upto], last[done:upto])].tobytes())
        done = upto
    return digest.hexdigest()


def _expanded(first: Rows, last: Rows) -> Rows:
    """The numbers from each `first` to its `last`, both included, one range after the other."""
    lengths = last - first + 1
    skipped = first - np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.repeat(skipped, lengths) + np.arange(lengths.sum())
