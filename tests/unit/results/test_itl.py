"""Gaps and token times out of segments, against the expansion of every token."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from simulator.results.integrity import check
from simulator.results.itl import InterTokenLatencies, itl_values
from simulator.results.record import RunRecord
from simulator.results.segments import further_tokens, token_time_digest, token_times, tokens_per_step
from tests.unit.results.synthetic import MS, replay


def busy_record(
    replicas: int = 2, requests: int = 60, preempt: bool = True, pauses: bool = False, drafts: int = 0
) -> RunRecord:
    rng = np.random.default_rng(13)
    return replay(
        np.sort(rng.integers(0, 3_000 * MS, requests)),
        rng.integers(1, 400, requests),
        rng.integers(1, 60, requests),
        replicas=replicas,
        slots=4,
        preempt_at=frozenset(range(5, 200, 7)) if preempt else frozenset(),
        pauses=pauses,
        drafts=drafts,
        accepts=(2, 0, 3, 3, 1),
    )


def expanded_gaps(record: RunRecord, chosen: np.ndarray) -> np.ndarray:
    gaps = [np.diff(token_times(record, index)) for index in np.flatnonzero(chosen)]
    return np.concatenate([*gaps, np.zeros(0, np.int64)])


def times_by_hand(record: RunRecord, request: int) -> list[int]:
    """Return token times by the definition of a segment and of its events, one at a time."""
    segments, steps = record.segments, record.steps
    paused, tokens = set(steps.paused.tolist()), iter(record.event_tokens.tolist())
    times = []
    for row in range(len(segments.request)):
        for step in range(segments.first_step[row], segments.last_step[row] + 1):
            at = steps.offsets[segments.replica[row]] + step
            if step == segments.first_step[row] or at not in paused:
                brought = next(tokens, 1)
                times += [int(steps.end_ns[at])] * (brought if segments.request[row] == request else 0)
    return times


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("pauses", [False, True])
def test_the_record_has_what_makes_gaps_hard(pauses: bool, drafts: int) -> None:
    record = busy_record(pauses=pauses, drafts=drafts)
    check(record)
    assert (len(record.steps.paused) > 20) is pauses
    assert (len(record.event_tokens) > 0) is (drafts > 0)
    assert record.requests.preemptions.sum() > 20
    assert np.bincount(record.segments.request).max() > 2
    assert (record.requests.output_tokens == 1).any()


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("pauses", [False, True])
def test_token_times_and_digest_are_those_of_the_definition(pauses: bool, drafts: int) -> None:
    record = busy_record(pauses=pauses, drafts=drafts)
    digest = hashlib.sha256()
    for request in range(60):
        times = times_by_hand(record, request)
        assert token_times(record, request).tolist() == times
        assert len(times) == record.requests.output_tokens[request]
        digest.update(np.array(times, "<i8").tobytes())
    assert token_time_digest(record) == digest.hexdigest()


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("pauses", [False, True])
def test_the_digest_does_not_depend_on_how_it_is_chunked(
    monkeypatch: pytest.MonkeyPatch, pauses: bool, drafts: int
) -> None:
    record = busy_record(pauses=pauses, drafts=drafts)
    whole = token_time_digest(record)
    segments = np.arange(len(record.segments.request))
    several = further_tokens(record, segments).tolist()
    for events in (1, 7, 100):
        monkeypatch.setattr("simulator.results.record._EVENTS_AT_ONCE", events)
        assert token_time_digest(record) == whole
        assert further_tokens(record, segments).tolist() == several


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("pauses", [False, True])
def test_tokens_per_step_are_all_tokens(pauses: bool, drafts: int) -> None:
    record = busy_record(pauses=pauses, drafts=drafts)
    tokens = tokens_per_step(record)
    ends = np.concatenate([times_by_hand(record, request) for request in range(60)])
    assert tokens.sum() == len(ends) == record.requests.emitted_tokens.sum()
    first, last = record.steps.offsets[0], record.steps.offsets[1]
    mine = np.concatenate([times_by_hand(record, request) for request in range(0, 60, 2)])
    assert tokens[first:last].tolist() == [int((mine == end).sum()) for end in record.steps.end_ns[first:last]]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("pauses", [False, True])
def test_gaps_are_those_of_every_token(replicas: int, preempt: bool, pauses: bool, drafts: int) -> None:
    record = busy_record(replicas, preempt=preempt, pauses=pauses, drafts=drafts)
    gaps = InterTokenLatencies(record)
    groups = [np.ones(60, bool), record.requests.prompt_tokens < 100, np.arange(60) % 7 == 0, np.arange(60) == 3]
    for chosen in groups:
        expanded = expanded_gaps(record, chosen)
        sample = gaps.of(chosen)
        assert sample.count == len(expanded)
        assert sample.mean() == pytest.approx(expanded.mean(), rel=1e-12)
        assert sample.std() == pytest.approx(expanded.std(), rel=1e-9)
        assert sample.values[-1] == expanded.max()
        for p in (0.0, 0.5, 0.9, 0.95, 0.99, 1.0):
            assert sample.quantile(p) == pytest.approx(np.quantile(expanded, p), rel=1e-12)
        values, weights = itl_values(record, chosen)
        assert np.array_equal(np.sort(np.repeat(values, weights)), np.sort(expanded))


@pytest.mark.parametrize("preempt", [False, True])
def test_gaps_by_event_are_those_of_the_stream(preempt: bool) -> None:
    """A client that counts an event as one token measures each step's end once, for any number of its tokens."""
    record = busy_record(preempt=preempt, drafts=3)
    gaps = InterTokenLatencies(record)
    for chosen in (np.ones(60, bool), np.arange(60) % 7 == 0):
        events = [np.diff(np.unique(times_by_hand(record, index))) for index in np.flatnonzero(chosen)]
        expanded = np.concatenate(events)
        sample = gaps.of_events(chosen)
        assert np.array_equal(np.repeat(sample.values, sample.weights.astype(int)), np.sort(expanded))
        tokens = gaps.of(chosen)
        assert tokens.count - sample.count == tokens.weights[tokens.values == 0].sum() > 0


def test_gaps_by_event_and_by_token_are_one_without_speculation() -> None:
    gaps = InterTokenLatencies(busy_record())
    chosen = np.ones(60, bool)
    assert gaps.of(chosen).values.tolist() == gaps.of_events(chosen).values.tolist()
    assert gaps.of(chosen).weights.tolist() == gaps.of_events(chosen).weights.tolist()


def test_no_gaps_without_second_tokens() -> None:
    record = replay([0, MS, 2 * MS], [10, 10, 10], [1, 1, 1])
    gaps = InterTokenLatencies(record)
    assert gaps.of(np.ones(3, bool)).count == 0
    assert gaps.of(np.zeros(3, bool)).count == 0


def test_intervals_take_the_step_as_the_unit() -> None:
    """100 requests in one batch have the same 400 gaps: 400 observations, not 40,000."""
    rng = np.random.default_rng(12)
    together = replay(np.zeros(100, np.int64), np.full(100, 10), np.full(100, 401), slots=100, kv_blocks=10**6)
    jitter = rng.integers(0, 5 * MS, len(together.steps.end_ns))
    np.add(together.steps.end_ns, np.cumsum(jitter), out=together.steps.end_ns)
    sample = InterTokenLatencies(together).of(np.ones(100, bool))
    assert sample.count == 40_000
    assert 100 < sample.effective_size(0.5) <= 400
