"""Comparison of tables of requests by all columns that affect a simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from simulator.workload import RequestTable
from simulator.workload.requests import PER_REQUEST


def difference(table: RequestTable, expected: RequestTable, ignored: Collection[str] = ()) -> str | None:
    """Return a description of the first difference between two tables, without the columns `ignored`; None if equal."""
    if len(table) != len(expected):
        return f"{len(table)} and {len(expected)} requests"
    theirs = dict(_columns(expected, ignored))
    for name, ours in _columns(table, ignored):
        other = theirs.pop(name, None)
        if other is None or not np.array_equal(ours, other):
            return name if other is None or ours.shape != other.shape else _row(name, ours, other)
    return next(iter(theirs), None)


def fingerprint(table: RequestTable, ignored: Collection[str] = ()) -> str:
    """Return a SHA-256 of the requests, without the columns `ignored`; it is equal only for equal requests."""
    digest = hashlib.sha256()
    for name, column in _columns(table, ignored):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _row(name: str, ours: NDArray[np.generic], theirs: NDArray[np.generic]) -> str:
    row = int(np.argmax(ours != theirs))
    return f"{name} of request {row} is {ours[row]} and {theirs[row]}"


def _columns(table: RequestTable, ignored: Collection[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    for name in PER_REQUEST:
        if name not in ignored:
            yield name, np.asarray(getattr(table, name), np.int64)
    for name in sorted(table.extras):
        yield name, table.extras[name]
    if table.closed_loop is not None:
        yield "concurrency", np.array([table.closed_loop.concurrency])
        yield "think_ns", np.asarray(table.closed_loop.think_ns, np.int64)
    if table.max_concurrency is not None:
        yield "max_concurrency", np.array([table.max_concurrency])
