"""Each law of a record, broken on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.results.columns import Refusal, Status
from simulator.results.integrity import check
from simulator.results.record import RunRecord
from tests.unit.results.synthetic import MS, refused, replay


@pytest.fixture
def record() -> RunRecord:
    rng = np.random.default_rng(21)
    arrival = np.sort(rng.integers(0, 1_000 * MS, 30))
    return replay(arrival, rng.integers(1, 99, 30), rng.integers(1, 30, 30), replicas=2, preempt_at=frozenset({7, 20}))


def changed(record: RunRecord, part: str, name: str, row: int, value: Any) -> RunRecord:
    column = np.array(getattr(getattr(record, part), name))
    column[row] = value
    return replace(record, **{part: replace(getattr(record, part), **{name: column})})


def test_a_whole_record_obeys(record: RunRecord) -> None:
    check(record)


def test_a_record_without_steps_obeys() -> None:
    check(refused())


@pytest.mark.parametrize(
    ("part", "name", "row", "value", "law"),
    [
        ("requests", "status", 3, Status.IN_FLIGHT, "a request ends when it is completed"),
        ("requests", "refusal", 3, Refusal.KV_POOL, "refused requests have a reason"),
        ("requests", "emitted_tokens", 3, 10**6, "no more tokens than output_tokens"),
        ("requests", "emitted_tokens", 3, 0, "a completed request gets a token"),
        ("requests", "scheduled_ns", 3, 0, "arrival comes before scheduled"),
        ("requests", "arrival_ns", 3, -1, "arrival comes before scheduled"),
        ("requests", "first_token_ns", 3, 10**15, "first token comes before finish"),
        ("requests", "output_tokens", 3, 0, "no more tokens than output_tokens"),
        ("segments", "last_step", 0, 0, "a segment has a token|segments have the delivered tokens"),
        ("segments", "request", 0, 29, "segments"),
        ("steps", "kv_used", 4, 10**9, "KV blocks in use exist"),
        ("steps", "start_ns", 4, 0, "a step starts after it was formed"),
        ("steps", "end_ns", 4, 0, "a step ends after it started"),
    ],
)
def test_a_broken_law_is_named(record: RunRecord, part: str, name: str, row: int, value: int, law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check(changed(record, part, name, row, value))


def test_steps_of_a_replica_end_in_order(record: RunRecord) -> None:
    for name in ("sched_ns", "start_ns", "end_ns"):
        record = changed(record, "steps", name, 5, 0)
    with pytest.raises(AssertionError, match="steps of a replica end in order: violated in row 4"):
        check(record)


@pytest.fixture
def drafted() -> RunRecord:
    return replay([0, MS], [50, 60], [20, 9], drafts=3, accepts=(1, 3, 0))


@pytest.mark.parametrize(
    ("name", "row", "value", "law"),
    [
        ("drafts.step", 1, 0, "a step drafts once"),
        ("drafts.draft_ns", 1, 10**12, "drafting takes no longer than its step"),
        ("draft_positions.accepted", 0, 10**6, "a sequence that reached a depth accepts one draft of it, or none"),
        ("draft_positions.drafts", 2, 0, "a sequence at a depth has a draft of it"),
        ("draft_positions.reached", 1, 10**6, "a depth is reached where drafts of it are"),
        ("draft_positions.reached", 0, 9, "the first depth is always reached"),
        ("draft_positions.accepted", 0, 0, "a depth is reached by sequences with accepted drafts before it"),
    ],
)
def test_a_broken_law_of_drafts_is_named(drafted: RunRecord, name: str, row: int, value: int, law: str) -> None:
    check(drafted)
    with pytest.raises(AssertionError, match=law):
        check(changed(drafted, *name.split("."), row, value))


def test_events_have_tokens_that_add_up(drafted: RunRecord) -> None:
    tokens = np.array(drafted.event_tokens)
    for broken, law in (
        (tokens[:-1], "every event has a number of tokens"),
        (np.append(tokens, np.uint16(1)), "every event has a number of tokens"),
        (np.where(np.arange(len(tokens)) == 3, 0, tokens), "an event delivers a token"),
        (tokens + (np.arange(len(tokens)) == 3), "segments have the delivered tokens"),
    ):
        with pytest.raises(AssertionError, match=law):
            check(replace(drafted, event_tokens=broken))
