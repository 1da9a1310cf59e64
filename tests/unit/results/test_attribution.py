"""Parts of the time: by hand on small records, and invariants of all records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.results.attribution import PARTS, attribute, composition
from simulator.results.columns import PreemptionColumns, SegmentColumns
from simulator.results.integrity import check
from simulator.results.metrics import summarise
from simulator.results.record import RunRecord
from tests.unit.results.synthetic import MS, refused, replay, scenario


def parts_ms(record: RunRecord) -> dict[str, list[float]]:
    return {name: (part / MS).tolist() for name, part in attribute(record).items()}


def with_stalls(record: RunRecord, **stalls_ms: int) -> RunRecord:
    """Return the record with these delays by chunks, by step: `r3=2`."""
    stall_ns = np.array(record.steps.stall_ns)
    for row, stall in stalls_ms.items():
        stall_ns[int(row[1:])] = stall * MS
    return replace(record, steps=replace(record.steps, stall_ns=stall_ns))


def test_queue_prefill_and_decode_by_hand() -> None:
    """Steps of 10 ms from 0 on. The second request comes at 5, is scheduled at 10, and gets tokens at 20 and 30."""
    record = replay([0, 5 * MS], [1, 1], [1, 2], token_ns=0)
    assert parts_ms(record) == {
        "queue": [0, 5],
        "prefill": [10, 10],
        "decode": [0, 10],
        "stall": [0, 0],
        "preempted": [0, 0],
    }


def test_a_stall_counts_for_those_who_decode_and_not_for_the_first_token() -> None:
    """Steps 0 to 3; the second request joins in step 1, whose chunk costs 4 ms: the first request's decode, alone."""
    record = with_stalls(replay([0, 5 * MS], [1, 1], [4, 2], token_ns=0), r1=4, r2=3)
    found = parts_ms(record)
    assert found["stall"] == [7, 3]
    assert found["prefill"] == [10, 10]
    assert found["decode"] == [23, 7]


def held() -> RunRecord:
    """Return the record of one request with tokens from steps 0, 1 and 4, held in steps 2 and 3. Steps take 10 ms."""
    one = replay([0, 0], [1, 1], [3, 5], token_ns=0)
    segments = SegmentColumns(np.array([0, 0, 1]), np.zeros(3, int), np.array([0, 4, 0]), np.array([1, 4, 4]))
    finish_ns = np.array([50 * MS, 50 * MS])
    return replace(one, segments=segments, requests=replace(one.requests, finish_ns=finish_ns))


def test_whole_steps_in_which_a_decode_was_held_are_stalls() -> None:
    found = parts_ms(with_stalls(held(), r4=4))
    assert found["stall"] == [20 + 4, 4]
    assert found["decode"] == [10 + 6, 36]


def test_the_gap_of_a_preemption_is_preempted_with_the_recomputation() -> None:
    """The same gap, but its request was preempted at 20 ms and scheduled again at 40: it is back at 50."""
    lost = PreemptionColumns(np.array([0]), np.array([20 * MS]), np.array([40 * MS]))
    found = parts_ms(with_stalls(replace(held(), preemptions=lost), r4=4))
    assert (found["stall"][0], found["decode"][0], found["preempted"][0]) == (0, 10, 30)


def test_a_preemption_before_the_first_token_is_no_prefill() -> None:
    """Scheduled at 0, preempted at 10 ms, scheduled again at 30, first token at 40."""
    one = replay([0], [1], [1], token_ns=0)
    moments = {name: np.array([40 * MS]) for name in ("first_token_ns", "finish_ns")}
    record = replace(one, requests=replace(one.requests, **moments, preemptions=np.array([2])))
    lost = PreemptionColumns(np.array([0, 0]), np.array([10 * MS, 25 * MS]), np.array([20 * MS, 30 * MS]))
    found = parts_ms(replace(record, preemptions=lost))
    assert (found["prefill"], found["preempted"]) == ([25], [15])


def test_a_gap_is_only_preempted_if_the_return_lies_in_it() -> None:
    """Two gaps, 20 to 40 ms and 50 to 80 ms: a return at 40 ms cannot end the first, one at 50 is the second's."""
    one = replay([0, 0], [1, 1], [4, 8], token_ns=0)
    segments = SegmentColumns(np.array([0, 0, 0, 1]), np.zeros(4, int), np.array([0, 3, 7, 0]), np.array([1, 4, 7, 7]))
    moved = replace(one.requests, finish_ns=np.array([80 * MS, 80 * MS]))
    record = replace(one, segments=segments, requests=moved)
    for back_ms, preempted_ms in ((20, 20), (39, 20), (40, 0), (50, 30), (79, 30), (80, 0)):
        lost = PreemptionColumns(np.array([0]), np.array([15 * MS]), np.array([back_ms * MS]))
        assert parts_ms(replace(record, preemptions=lost))["preempted"] == [preempted_ms, 0], back_ms


def test_what_did_not_finish_has_no_parts() -> None:
    assert all(not part.any() for part in attribute(refused()).values())
    assert composition(attribute(refused()), np.array([False])) is None
    assert "attribution" not in summarise(refused(), scenario())


def test_compositions_are_means_around_percentiles_of_e2e() -> None:
    """200 requests of 1 to 200 ms, half of it queue: within 2 ranks of the median are 98 to 103 ms."""
    e2e = np.random.default_rng(0).permutation(np.arange(1, 201)) * MS
    parts = {"queue": e2e // 2, "decode": e2e - e2e // 2}
    found = composition(parts, np.ones(200, bool))
    assert found is not None
    assert list(found) == ["mean", "p50", "p90", "p95", "p99"]
    assert found["mean"] == {"requests": 200, "e2e_ms": 100.5, "queue_ms": 50.25, "decode_ms": 50.25}
    assert found["p50"] == {"requests": 6, "e2e_ms": 100.5, "queue_ms": 50.25, "decode_ms": 50.25}
    assert found["p99"]["requests"] == 5  # ranks 196 to 200: the last ones
    assert found["p99"]["e2e_ms"] == 198
    few = composition({"queue": e2e}, e2e <= 2 * MS)
    assert few is not None
    assert [few[name]["requests"] for name in ("mean", "p50", "p99")] == [2, 2, 2]


@given(st.integers(1, 60), st.integers(0, 10**6), st.frozensets(st.integers(0, 60), max_size=8), st.booleans())
def test_parts_are_never_negative_and_add_up(count: int, seed: int, preempt_at: frozenset[int], pauses: bool) -> None:
    draw = np.random.default_rng(seed)
    arrival = np.sort(draw.integers(0, 400 * MS, count))
    prompts, outputs = draw.integers(1, 50, count), draw.integers(1, 12, count)
    record = replay(arrival, prompts, outputs, slots=4, preempt_at=preempt_at, pauses=pauses)
    took_ns = record.steps.end_ns - record.steps.start_ns
    stalls = draw.integers(0, took_ns + 1) * (draw.random(len(took_ns)) < 0.3) * (record.steps.decodes > 0)
    record = replace(record, steps=replace(record.steps, stall_ns=stalls))
    check(record)  # the parts, too
    parts = attribute(record)
    assert tuple(parts) == tuple(name for name in PARTS if name != "transfer")
    assert np.array_equal(sum(parts.values()), record.requests.finish_ns - record.requests.arrival_ns)
    assert bool(parts["preempted"].any()) == bool(len(record.preemptions.request))


@pytest.mark.parametrize(("column", "law"), [("stall_ns", "chunks prolong a step"), ("request", "its time")])
def test_a_record_that_breaks_the_laws_is_found(column: str, law: str) -> None:
    record = replay([0, 0], [1, 1], [9, 9], preempt_at=frozenset({3}))
    check(record)
    broken: dict[str, Any] = {
        "stall_ns": {"steps": replace(record.steps, stall_ns=record.steps.end_ns + 1)},
        "request": {"preemptions": replace(record.preemptions, request=1 - record.preemptions.request)},
    }
    with pytest.raises(AssertionError, match=law):
        check(replace(record, **broken[column]))
