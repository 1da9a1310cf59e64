"""One record of the runs of several shares, equal to that of a run in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from simulator.common.disk_arrays import stored
from simulator.engine.logs.request_log import in_time
from simulator.engine.shares import Share
from simulator.results.columns import (
    DraftColumns,
    DraftPositions,
    Ints,
    PreemptionColumns,
    RequestColumns,
    SegmentColumns,
    StepColumns,
)
from simulator.results.record import RunRecord, segment_events


def merged(records: Sequence[RunRecord], shares: Sequence[Share]) -> RunRecord:
    """Return the record of all shares; the engine cores of each follow those of the one before."""
    first = records[0]
    requests = _requests([record.requests for record in records], shares)
    steps = _steps([record.steps for record in records])
    order = np.argsort(_joined([record.segments.request for record in records]), kind="stable")
    preemptions = _tables([record.preemptions for record in records], PreemptionColumns)
    arrived = requests.client_ns[requests.client_ns >= 0]
    return replace(
        first,
        requests=requests,
        segments=SegmentColumns(*(column[order] for column in _columns([each.segments for each in records]))),
        preemptions=in_time(preemptions, requests.replica),
        steps=steps,
        drafts=_drafts(records),
        draft_positions=_draft_positions(records),
        event_tokens=_event_tokens(records, order),
        start_ns=int(arrived.min()) if len(arrived) else 0,
        end_ns=max(record.end_ns for record in records),
        complete=all(record.complete for record in records),
    )


def _joined(columns: Sequence[Ints]) -> Ints:
    return stored(np.concatenate(columns))


def _columns(tables: Sequence[Any]) -> list[Ints]:
    """Return the rows of several tables of one type, one table after the other, by column."""
    return [_joined([getattr(table, field.name) for table in tables]) for field in fields(tables[0])]


def _tables(tables: Sequence[Any], kind: type[Any]) -> Any:
    return kind(*_columns(tables))


def _requests(tables: Sequence[RequestColumns], shares: Sequence[Share]) -> RequestColumns:
    """Return the rows of all requests, each from the run that it was sent in."""
    columns = []
    for field in fields(RequestColumns):
        column = np.array(getattr(tables[0], field.name))
        for table, share in zip(tables[1:], shares[1:], strict=True):
            column[share.requests] = getattr(table, field.name)[share.requests]
        columns.append(stored(column))
    return RequestColumns(*columns)


def _steps(tables: Sequence[StepColumns]) -> StepColumns:
    """Return the steps of all cores; a run has none of the cores of other shares."""
    counts = np.sum([np.diff(table.offsets) for table in tables], axis=0)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    paused = [table.paused + begin for table, begin in zip(tables, _begins(tables), strict=True)]
    steps: StepColumns = _tables(tables, StepColumns)
    return replace(steps, offsets=offsets, paused=np.concatenate(paused))


def _begins(tables: Sequence[StepColumns]) -> list[int]:
    """Return the row of the first step of each table among all."""
    counts = [len(table.end_ns) for table in tables]
    return [sum(counts[:at]) for at in range(len(counts))]


def _drafts(records: Sequence[RunRecord]) -> DraftColumns:
    begins = _begins([record.steps for record in records])
    steps = [record.drafts.step + begin for record, begin in zip(records, begins, strict=True)]
    drafts: DraftColumns = _tables([record.drafts for record in records], DraftColumns)
    return replace(drafts, step=_joined(steps))


def _draft_positions(records: Sequence[RunRecord]) -> DraftPositions:
    """Return the sums over all runs, of which each has a row for every core and depth."""
    tables = [record.draft_positions for record in records]
    names = [field.name for field in fields(DraftPositions)][2:]  # without the core and the depth
    sums = [np.sum([getattr(table, name) for table in tables], axis=0) for name in names]
    return DraftPositions(tables[0].replica, tables[0].depth, *sums)


def _event_tokens(records: Sequence[RunRecord], order: Ints) -> Ints:
    """Return the tokens of events of all segments, whose rows are in this order."""
    if not any(len(record.event_tokens) for record in records):
        return records[0].event_tokens
    counts = [segment_events(record.segments, record.steps) for record in records]
    tokens = [
        record.event_tokens if len(record.event_tokens) else np.ones(int(own.sum()), record.event_tokens.dtype)
        for record, own in zip(records, counts, strict=True)
    ]
    lengths = np.concatenate(counts)
    begins = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    events = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
    return stored(np.concatenate(tokens)[events])
