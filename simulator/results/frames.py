"""The columns of a run as pandas data frames, with names instead of codes and latencies in ms."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum

import numpy as np
import pandas as pd

from simulator.results.attribution import attribute
from simulator.results.columns import Ints, Refusal, Status
from simulator.results.latency import tpot_ns
from simulator.results.record import RunRecord, segment_rows, segment_tokens


def request_frame(record: RunRecord) -> pd.DataFrame:
    """Return one row per request: its columns, its class by name, and its latencies in ms, NaN where undefined."""
    requests = record.requests
    columns: dict[str, object] = {field.name: getattr(requests, field.name) for field in fields(requests)}
    columns["status"] = _categorical(requests.status, Status)
    columns["refusal"] = _categorical(requests.refusal, Refusal)
    columns["class_name"] = pd.Categorical.from_codes(requests.class_id, record.class_names)
    got_token, finished = requests.first_token_ns >= 0, requests.finish_ns >= 0
    latencies = {
        "ttft_ms": (requests.first_token_ns - requests.arrival_ns, got_token),
        "tpot_ms": (tpot_ns(requests), finished & (requests.emitted_tokens > 1)),
        "e2e_ms": (requests.finish_ns - requests.arrival_ns, finished),
        **{f"{name}_ms": (part, finished) for name, part in attribute(record).items() if name != "queue"},
        "queue_ms": (requests.scheduled_ns - requests.arrival_ns, requests.scheduled_ns >= 0),
    }
    for name, (value_ns, known) in latencies.items():
        columns[name] = np.where(known, value_ns / 1e6, np.nan)
    return pd.DataFrame(columns)


def segment_frame(record: RunRecord) -> pd.DataFrame:
    """Return one row per segment: its columns, its tokens, and the times of its first and last token in ns."""
    segments = record.segments
    columns = {field.name: getattr(segments, field.name) for field in fields(segments)}
    for name, rows in zip(("first_token_ns", "last_token_ns"), segment_rows(segments, record.steps), strict=True):
        columns[name] = record.steps.end_ns[rows]
    columns["tokens"] = segment_tokens(segments, record.steps, record.event_tokens)
    return pd.DataFrame(columns)


def step_frame(record: RunRecord) -> pd.DataFrame:
    """Return one row per step: its replica, its number within the replica, its columns, whether decodes were paused,
    and with speculation its draft tokens and drafting time.
    """
    steps = record.steps
    counts = np.diff(steps.offsets)
    columns = {
        "replica": np.repeat(np.arange(len(counts)), counts),
        "step": np.arange(len(steps.end_ns)) - np.repeat(steps.offsets[:-1], counts),
    }
    columns |= {field.name: getattr(steps, field.name) for field in fields(steps)[1:-1]}
    frame = pd.DataFrame(columns)
    frame["paused"] = np.isin(np.arange(len(frame)), steps.paused)
    for name in ("draft_tokens", "draft_ns") if record.speculates else ():
        frame[name] = 0
        frame.loc[record.drafts.step, name] = getattr(record.drafts, name)
    return frame


def _categorical(codes: Ints, kinds: type[IntEnum]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, [kind.name.lower() for kind in kinds])
