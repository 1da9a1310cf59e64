"""Text to integers: exactly, and with errors that name file, line and column."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.workload.formats.cells import Cells
from simulator.workload.formats.values import seconds_to_ns, timestamps_to_ns, token_counts
from simulator.workload.tables import MAX_SECONDS

NS = 10**9
repeatable = settings(derandomize=True, deadline=None)
moments_ns = st.integers(0, MAX_SECONDS * NS)


def cells(*texts: str) -> Cells:
    return Cells("t.csv", range(2, 2 + len(texts)), {"x": texts})


def decimal_text(ns: int, digits: int = 9) -> str:
    """Return `ns` in seconds with nine decimals, without zeros after `digits`."""
    whole, fraction = divmod(ns, NS)
    text = f"{fraction:09d}"
    return f"{whole}.{text[: max(digits, len(text.rstrip('0')))]}"


@repeatable
@given(st.lists(st.tuples(moments_ns, st.integers(0, 9)), min_size=1))
def test_decimal_seconds_are_exact_to_the_nanosecond(moments: list[tuple[int, int]]) -> None:
    texts = [decimal_text(ns, digits) for ns, digits in moments]
    assert seconds_to_ns(cells(*texts), "x").tolist() == [ns for ns, _ in moments]


@repeatable
@given(moments_ns, st.sampled_from(["{:f}", "{:e}", "{:E}", "+{:f}", "0{:f}"]))
def test_every_way_to_write_a_number_gives_the_same_nanoseconds(ns: int, style: str) -> None:
    assert seconds_to_ns(cells(style.format(Decimal(ns).scaleb(-9))), "x").tolist() == [ns]


@repeatable
@given(st.integers(0, MAX_SECONDS * NS - 1), st.integers(0, 10**6 - 1))
def test_digits_beyond_the_ninth_are_rounded_to_the_nearest(ns: int, beyond: int) -> None:
    (read,) = seconds_to_ns(cells(f"{decimal_text(ns)}{beyond:06d}"), "x").tolist()
    assert abs((read - ns) * 10**6 - beyond) <= 500_000


def test_one_unusual_cell_does_not_change_the_others() -> None:
    assert seconds_to_ns(cells("0.1", "1e-7", ".5", "3."), "x").tolist() == [10**8, 100, NS // 2, 3 * NS]


def test_an_empty_cell_takes_the_value_for_missing() -> None:
    assert seconds_to_ns(cells("1", ""), "x", missing=-1).tolist() == [NS, -1]
    assert token_counts(cells("", "7"), "x", missing=-1).tolist() == [-1, 7]


@repeatable
@given(st.lists(st.integers(1, 10**8), min_size=1))
def test_token_counts_are_read_back(counts: list[int]) -> None:
    read = token_counts(cells(*map(str, counts)), "x")
    assert read.dtype == np.int64
    assert read.tolist() == counts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "must be at least 1, found 0"),
        ("-3", "must be at least 1, found -3"),
        ("100000001", "must be at most 100000000, found 100000001"),
        ("9" * 30, f"must be at most 100000000, found {'9' * 30}"),
        ("9" * 5000, f"must be at most 100000000, found {'9' * 37}..."),
        ("1.5", "expected a whole number, found '1.5'"),
        ("1e3", "expected a whole number, found '1e3'"),
        ("1_000", "expected a whole number, found '1_000'"),
        ("nan", "expected a whole number, found 'nan'"),
        ("inf", "expected a whole number, found 'inf'"),
        ("٣", "expected a whole number, found '٣'"),
        ("a\nb", "expected a whole number, found 'a\\nb'"),
        ("x" * 99, f"expected a whole number, found '{'x' * 37}...'"),
        ("", "missing"),
    ],
)
def test_wrong_token_counts_are_named(text: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        token_counts(cells("5", text), "x")
    assert str(error.value) == f"t.csv:3: x: {why}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-0.5", "must not be negative, found -0.5"),
        ("NaN", "expected a finite number, found NaN"),
        ("-Infinity", "expected a finite number, found -Infinity"),
        ("1,5", "expected a number of seconds, found '1,5'"),
        ("1.2.3", "expected a number of seconds, found '1.2.3'"),
        ("0x10", "expected a number of seconds, found '0x10'"),
        ("1e12", "must be at most 3155760000 seconds (a century), found 1e12"),
        ("1e999999", "must be at most 3155760000 seconds (a century), found 1e999999"),
        ("1e9999999", "expected a number of seconds, found '1e9999999'"),
        ("", "missing"),
    ],
)
def test_wrong_seconds_are_named(text: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        seconds_to_ns(cells("5", text), "x")
    assert str(error.value) == f"t.csv:3: x: {why}"


NOON_NS = int(np.datetime64("2024-05-10T12:00:00", "ns").astype(np.int64))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2024-05-10 12:00:00", NOON_NS),
        ("2024-05-10T12:00:00Z", NOON_NS),
        ("2024-05-10 12:00:00.0099300", NOON_NS + 9_930_000),
        ("2024-05-10 12:00:00.009930+00:00", NOON_NS + 9_930_000),
        ("2024-05-10 12:00:00.000000001", NOON_NS + 1),
        ("2024-05-10 14:00:00+02:00", NOON_NS),
        ("2024-05-10 08:30:00-03:30", NOON_NS),
    ],
)
def test_timestamps_are_exact(text: str, ns: int) -> None:
    assert timestamps_to_ns(cells(text), "x").tolist() == [ns]


def test_timestamps_may_mix_time_zones() -> None:
    mixed = cells("2024-05-10 12:00:00", "2024-05-10 14:00:00.5+02:00", "2024-05-10 12:00:01+00:00")
    assert (timestamps_to_ns(mixed, "x") - NOON_NS).tolist() == [0, NS // 2, NS]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("now", "expected a time such as 2023-11-16 18:17:03.9799600, in 1970 to 2069; found 'now'"),
        ("1234.5", "expected a time such as 2023-11-16 18:17:03.9799600, in 1970 to 2069; found '1234.5'"),
        (
            "2070-01-01 00:00:00",
            "expected a time such as 2023-11-16 18:17:03.9799600, in 1970 to 2069; found '2070-01-01 00:00:00'",
        ),
        ("2023-02-30 00:00:00", "there is no such date or time as '2023-02-30 00:00:00'"),
        ("2023-02-03 24:00:01", "there is no such date or time as '2023-02-03 24:00:01'"),
        ("", "missing"),
    ],
)
def test_wrong_timestamps_are_named(text: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        timestamps_to_ns(cells("2023-11-16 18:17:03", text), "x")
    assert str(error.value) == f"t.csv:3: x: {why}"
