"""Durations, sizes and bandwidths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.scenario.units import (
    format_bandwidth,
    format_duration,
    format_size,
    parse_bandwidth,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("250ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        ("0s", 0),
        ("2min", 120 * 10**9),
        (".5us", 500),
        ("3 s", 3 * 10**9),
    ],
)
def test_durations_are_whole_nanoseconds(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(("text", "size"), [("80GiB", 80 * 2**30), ("80GB", 80 * 10**9), ("1.5KiB", 1536), ("7B", 7)])
def test_sizes_are_binary_or_decimal_as_written(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("250", "expected a duration"),
        ("ms", "expected a duration"),
        ("-1s", "expected a duration"),
        ("1e3s", "expected a duration"),
        ("5 parsecs", "units: ns, us, ms, s, min, h, d"),
        ("0.5ns", "not a whole number of ns"),
        ("300000d", "too large"),
    ],
)
def test_what_is_no_duration_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("25GB/s", 25 * 10**9),
        ("200Gb/s", 25 * 10**9),
        ("1.6 Tb/s", 200 * 10**9),
        ("1GiB/s", 2**30),
        ("8kb/s", 1000),
        ("5B/s", 5),
    ],
)
def test_bandwidths_are_bytes_or_bits_as_written(text: str, bytes_per_s: int) -> None:
    assert parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("25GB", "expected a bandwidth"),
        ("25", "expected a bandwidth"),
        ("25Gbps", "units: B/s, kB/s"),
        ("0.001kb/s", "not a whole number of B/s"),
        ("5000000TB/s", "too large"),
    ],
)
def test_what_is_no_bandwidth_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_bandwidth(text)


@given(st.integers(0, 36_525 * 86_400 * 10**9))
def test_what_is_written_is_read_back(value: int) -> None:
    assert parse_duration(format_duration(value)) == value
    assert parse_size(format_size(value)) == value
    assert parse_bandwidth(format_bandwidth(value)) == value
