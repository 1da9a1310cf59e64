"""The linear law against hand-computed steps."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models import BatchShape, LinearLaw
from cost_models.shape import costs_one_by_one

RECORDINGS = LinearLaw(base_ns=5_000_000, per_token_ns=20_000, per_context_token_ns=10)
EVERYTHING = LinearLaw(
    base_ns=7,
    per_token_ns=11,
    per_prefill_token_ns=13,
    per_decode_token_ns=17,
    per_context_token_ns=19,
    host_ns=23,
)
MIXED = BatchShape(decodes=3, decode_context=90, chunks=((40, 0), (8, 100)), sampled=4, draft_tokens=2)


def test_the_law_of_the_scheduler_recordings() -> None:
    # dur = 5,000,000 + 20,000 x total + 10 x sum(computed before + n), over decodes and chunks alike.
    scheduled = [(100, 1), (57, 1), (0, 64), (128, 32)]
    shape = BatchShape(decodes=2, decode_context=101 + 58, chunks=((64, 0), (32, 128)), sampled=3)
    total, keys = sum(n for _, n in scheduled), sum(before + n for before, n in scheduled)
    expected = 5_000_000 + 20_000 * total + 10 * keys
    assert RECORDINGS.step_cost(shape) == (expected, 0, 0)


def test_every_term() -> None:
    keys = 90 + 40 + 108
    expected = 7 + 11 * (3 + 2 + 48) + 13 * 48 + 17 * 3 + 19 * keys
    assert EVERYTHING.step_cost(MIXED) == (expected, 23, 0)


def test_breakdown_adds_up() -> None:
    assert sum(EVERYTHING.breakdown(MIXED).values()) == EVERYTHING.step_cost(MIXED).device_ns


def test_a_decode_run_equals_single_steps() -> None:
    first = BatchShape(decodes=5, decode_context=1000, sampled=5, draft_tokens=3)
    singles = [EVERYTHING.step_cost(first._replace(decode_context=1000 + 5 * step)).device_ns for step in range(50)]
    assert EVERYTHING.decode_run(first, 50).tolist() == singles
    assert EVERYTHING.decode_run(first, 0).tolist() == []


def test_costs_of_many_decode_steps_equal_those_of_each() -> None:
    columns = np.array([[1, 5, 300], [7, 1000, 10**9], [0, 0, 0]], np.int64)
    found = [times.tolist() for times in EVERYTHING.decode_costs(*columns)]
    assert found == [times.tolist() for times in costs_one_by_one(EVERYTHING, *columns)]


def test_a_decode_run_has_no_chunks() -> None:
    with pytest.raises(ValueError, match="expected a pure decode step, found 2 prefill chunks"):
        EVERYTHING.decode_run(MIXED, 2)
