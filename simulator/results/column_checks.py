"""Checks of the columns of a results directory, which may have been changed since it was written."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from simulator.results.columns import Ints, Refusal, ReplicaState, Status
from simulator.results.record import RunRecord, segment_rows, tokens_by_request

#: The tables of a record. All columns of a table have one length, with the exceptions below.
_TABLES = (
    "requests",
    "segments",
    "preemptions",
    "steps",
    "transfers",
    "offload",
    "drafts",
    "draft_positions",
    "replica_states",
)
_OF_OTHER_LENGTH = {("steps", "offsets"), ("steps", "paused")}


def check_columns(record: RunRecord) -> None:
    """Verify that all columns are integers that fit together.

    Raises:
        ValueError: a column does not fit; the message names it.
    """
    for table in _TABLES:
        _check_table(table, getattr(record, table))
    _check_array("events.event_tokens", record.event_tokens)
    _check_facts(record)
    _check_steps(record)
    _check_numbers(record)
    _check_events(record)


def _check_table(table: str, columns: Any) -> None:
    lengths = {}
    for field in fields(columns):
        column = getattr(columns, field.name)
        _check_array(f"{table}.{field.name}", column)
        if (table, field.name) not in _OF_OTHER_LENGTH:
            lengths[field.name] = len(column)
    first = next(iter(lengths))
    for name, length in lengths.items():
        if length != lengths[first]:
            raise ValueError(f"{table}.{name}: {length} rows, and {lengths[first]} in {table}.{first}")


def _check_array(name: str, column: Any) -> None:
    if not isinstance(column, np.ndarray) or column.ndim != 1 or not np.issubdtype(column.dtype, np.integer):
        found = f"{column.dtype} of shape {column.shape}" if isinstance(column, np.ndarray) else "not an array"
        raise ValueError(f"{name}: expected a column of integers, found {found}")


def _check_facts(record: RunRecord) -> None:
    numbers = [(f"pools.{name}", getattr(pool, name)) for pool in record.pools for name in _OF_POOLS]
    numbers += [(f"tiers.{name}", getattr(tier, name)) for tier in record.tiers for name in _OF_TIERS]
    for name, value in (*numbers, ("start_ns", record.start_ns), ("end_ns", record.end_ns)):
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(f"{name}: expected an integer of at least 0, found {value!r:.40}")
    if type(record.complete) is not bool:
        raise ValueError("complete: expected true or false")
    if not record.pools or any(
        pool.replicas < 1 or pool.cores < 1 or pool.kv_blocks < 1 or pool.block_size < 1 for pool in record.pools
    ):
        raise ValueError("pools: expected one or more, with replicas and blocks")
    if not all(isinstance(name, str) for name in record.class_names):
        raise ValueError("class_names: expected strings")


_OF_POOLS = ("first", "replicas", "cores", "gpus", "kv_blocks", "block_size")
_OF_TIERS = ("replica", "blocks", "written", "dropped", "block_bytes", "bytes_per_s")


def _check_steps(record: RunRecord) -> None:
    steps, offsets = record.steps, record.steps.offsets
    rows = len(steps.end_ns)
    if len(offsets) != record.cores + 1:
        raise ValueError(f"steps.offsets: expected {record.cores + 1} numbers, found {len(offsets)}")
    if offsets[0] != 0 or offsets[-1] != rows or np.any(np.diff(offsets.astype(np.int64)) < 0):
        raise ValueError(f"steps.offsets: must rise from 0 to the {rows} steps")
    if np.any(np.diff(steps.paused.astype(np.int64)) <= 0):
        raise ValueError("steps.paused: must rise")


def _check_numbers(record: RunRecord) -> None:
    """Verify the columns that are indices of rows, replicas and classes, or codes."""
    requests, segments, cores = record.requests, record.segments, record.cores
    count, rows = len(requests.status), len(record.steps.end_ns)
    for name, column, least, end in (
        ("steps.paused", record.steps.paused, 0, rows),
        ("requests.status", requests.status, 0, len(Status)),
        ("requests.refusal", requests.refusal, 0, len(Refusal)),
        ("requests.class_id", requests.class_id, 0, len(record.class_names)),
        ("requests.replica", requests.replica, -1, cores),
        ("segments.request", segments.request, 0, count),
        ("segments.replica", segments.replica, 0, cores),
        ("preemptions.request", record.preemptions.request, 0, count),
        ("transfers.request", record.transfers.request, 0, count),
        ("transfers.source", record.transfers.source, 0, cores),
        ("transfers.target", record.transfers.target, 0, cores),
        ("offload.request", record.offload.request, 0, count),
        ("offload.replica", record.offload.replica, 0, cores),
        ("drafts.step", record.drafts.step, 0, rows),
        ("draft_positions.replica", record.draft_positions.replica, 0, cores),
        ("replica_states.replica", record.replica_states.replica, 0, sum(pool.replicas for pool in record.pools)),
        ("replica_states.state", record.replica_states.state, 0, len(ReplicaState)),
    ):
        _check_range(name, column, least, end)


def _check_range(name: str, column: Ints, least: int, end: int) -> None:
    if len(column) and (int(column.min()) < least or int(column.max()) >= end):
        raise ValueError(f"{name}: expected numbers from {least} to {end - 1}")


def _check_events(record: RunRecord) -> None:
    """Verify that segments lie within their replica's steps, and have as many tokens as their requests."""
    segments, steps = record.segments, record.steps
    if not len(segments.request):
        return
    first, last = segment_rows(segments, steps)
    ends = steps.offsets.astype(np.int64)[1:][segments.replica]
    if np.any(segments.first_step < 0) or np.any(last < first) or np.any(last >= ends):
        raise ValueError("segments: a first or last step is not a step of the replica")
    try:
        delivered = tokens_by_request(segments, steps, record.event_tokens, len(record.requests.status))
    except IndexError:
        raise ValueError("events.event_tokens: fewer events than the segments have") from None
    if np.any(delivered != record.requests.emitted_tokens):
        raise ValueError("requests.emitted_tokens: not the numbers of tokens of the segments")
