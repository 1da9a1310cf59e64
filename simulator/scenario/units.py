"""Durations, sizes and bandwidths as texts with units: `250ms`, `80GiB`, `25GB/s`. A bare number is an error, since its
unit would be unclear.
"""

from __future__ import annotations

import re
from decimal import Decimal

from cost_models.errors import shown

_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_PER_SECOND = {f"{unit}/s": size for unit, size in _BYTES.items()}
_PER_SECOND |= {"kb/s": 10**3 // 8, "Mb/s": 10**6 // 8, "Gb/s": 10**9 // 8, "Tb/s": 10**12 // 8}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]+(?:/s)?)")
#: The longest duration, a century of 36,525 days, and the largest size and bandwidth: sums of two fit in 64 bits.
_LONGEST, _LARGEST = 36_525 * _NS["d"], 2**62


def parse_duration(text: str) -> int:
    """Return the nanoseconds of `text`, such as `250ms`, `1.5s`, `2min` or `0s`.

    Raises:
        ValueError: no number with a known unit, a fraction of a nanosecond, or more than a century.
    """
    return _parse(text, _NS, _LONGEST, "a duration such as 250ms or 1.5s")


def parse_size(text: str) -> int:
    """Return the bytes of `text`, such as `80GiB` (binary) or `80GB` (decimal).

    Raises:
        ValueError: no number with a known unit, a fraction of a byte, or more than 4 EiB.
    """
    return _parse(text, _BYTES, _LARGEST, "a size such as 80GiB or 4GB")


def parse_bandwidth(text: str) -> int:
    """Return the bytes a second of `text`, such as `25GB/s` or, in bits, `200Gb/s`.

    Raises:
        ValueError: no number with a known unit, a fraction of a byte, or more than 4 EiB a second.
    """
    return _parse(text, _PER_SECOND, _LARGEST, "a bandwidth such as 25GB/s or, in bits, 200Gb/s")


def format_duration(ns: int) -> str:
    """Return the shortest exact text that `parse_duration` reads back as `ns`."""
    return _format(ns, {unit: _NS[unit] for unit in ("s", "ms", "us", "ns")})


def format_size(size: int) -> str:
    """Return the shortest exact text that `parse_size` reads back as `size` bytes."""
    return _format(size, {unit: _BYTES[unit] for unit in ("GiB", "MiB", "KiB", "B")})


def format_bandwidth(bytes_per_s: int) -> str:
    """Return the shortest exact text, in units of bytes, that `parse_bandwidth` reads back as `bytes_per_s`."""
    return _format(bytes_per_s, {unit: _PER_SECOND[unit] for unit in ("GB/s", "MB/s", "kB/s", "B/s")})


def _parse(text: str, units: dict[str, int], largest: int, wanted: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"expected {wanted}, found {shown(text)} (units: {', '.join(units)})")
    value = Decimal(match[1]) * units[match[2]]
    if value != int(value):
        smallest = next(iter(units))
        raise ValueError(f"{shown(text)} is not a whole number of {smallest}")
    if value > largest:
        raise ValueError(f"{shown(text)} is too large: at most {_format(largest, units)}")
    return int(value)


def _format(value: int, units: dict[str, int]) -> str:
    unit, size = max(((u, s) for u, s in units.items() if value % s == 0), key=lambda entry: entry[1])
    return f"{value // size}{unit}"
