"""Exact conversion of columns of text to integers: token counts, and times in ns without rounding to float.

A column in which all cells have the usual form is converted at once, any other column cell by cell: unusual but valid
cells are accepted, others raise InputError with the text `file:line: column: problem`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np

from simulator.workload.formats.cells import Cells, shown
from simulator.workload.requests import Ints
from simulator.workload.tables import MAX_SECONDS, MAX_TOKENS, NS

_WHOLE = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,6})?")
_NOT_FINITE = re.compile(r"[-+]?(?:nan|inf|infinity)", re.IGNORECASE)
_TIMESTAMP = re.compile(
    r"((?:19[7-9]|20[0-6])[0-9]-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)"
    r"(?:Z|([-+][0-9]{2}):([0-5][0-9]))?"
)
_NANOSECOND = Decimal("1e-9")


def token_counts(cells: Cells, column: str, missing: int | None = None, low: int = 1) -> Ints:
    """Return token counts from `low` to `MAX_TOKENS`; an empty cell becomes `missing`, if given.

    Raises:
        InputError: a cell is empty (without `missing`), not a whole number, or out of range.
    """
    return whole_numbers(cells, column, low, MAX_TOKENS, missing)


def whole_numbers(cells: Cells, column: str, low: int, high: int, missing: int | None = None) -> Ints:
    """Return whole numbers from `low` to `high`, which fit in 64 bits. Raises InputError as `token_counts` does."""
    plain = functools.partial(_plain_whole, low=low, high=high)
    one = functools.partial(_one_whole, low=low, high=high)
    return _converted(cells, column, plain, one, missing)


def seconds_to_ns(cells: Cells, column: str, missing: int | None = None) -> Ints:
    """Return seconds, zero or more, as ns; digits beyond the ninth decimal are rounded half to even.

    Raises:
        InputError: a cell is empty (without `missing`), not a finite number, negative, or more than a
        century.
    """
    return _converted(cells, column, _plain_seconds, _one_seconds, missing)


def timestamps_to_ns(cells: Cells, column: str) -> Ints:
    """Return wall-clock times such as `2023-11-16 18:17:03.9799600` as ns since 1970; UTC where no zone is given.

    Raises:
        InputError: a cell is empty, or no such time, or not in the century from 1970 on.
    """
    return _converted(cells, column, _plain_timestamps, _one_timestamp, None)


def _converted(
    cells: Cells,
    column: str,
    plain: Callable[[Sequence[str]], Ints | None],
    one: Callable[[str], int],
    missing: int | None,
) -> Ints:
    """Convert the column by `plain` or, if that returns None, each cell that is not empty by `one`."""
    texts = cells.columns[column]
    values = plain(texts)
    if values is not None:
        return values
    result = np.empty(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        if not text:
            result[row] = cells.fail(row, column, "missing") if missing is None else missing
            continue
        try:
            result[row] = one(text)
        except ValueError as error:
            cells.fail(row, column, str(error))
    return result


def _plain_whole(texts: Sequence[str], low: int, high: int) -> Ints | None:
    digits = "".join(texts)
    sizes = set(map(len, texts))
    if not (digits.isascii() and digits.isdigit()) or min(sizes) < 1 or max(sizes) > 18:
        return None
    values = np.array(list(map(int, texts)), dtype=np.int64)
    return values if low <= values.min() and values.max() <= high else None


def _one_whole(text: str, low: int, high: int) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"expected a whole number, found {shown(text)}")
    value = Decimal(text)  # exact for a million digits, too, for which int() fails or is slow
    if value < low:
        raise ValueError(f"must be at least {low}, found {_brief(text)}")
    if value > high:
        raise ValueError(f"must be at most {high}, found {_brief(text)}")
    return int(value)


def _plain_seconds(texts: Sequence[str]) -> Ints | None:
    digits = "".join(texts).replace(".", "")
    if not (digits.isascii() and digits.isdigit()):
        return None
    values = []
    for text in texts:
        whole, _, fraction = text.partition(".")
        if not 0 < len(whole) < 10 or len(fraction) > 9 or "." in fraction:
            return None
        values.append(int(whole) * NS + int(fraction.ljust(9, "0")))
    return np.array(values, dtype=np.int64)


def _one_seconds(text: str) -> int:
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"expected a finite number, found {text}")
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"expected a number of seconds, found {shown(text)}")
    value = Decimal(text)
    if value < 0:
        raise ValueError(f"must not be negative, found {_brief(text)}")
    if value > MAX_SECONDS:
        raise ValueError(f"must be at most {MAX_SECONDS} seconds (a century), found {_brief(text)}")
    return int(value.quantize(_NANOSECOND).scaleb(9))


def _plain_timestamps(texts: Sequence[str]) -> Ints | None:
    matches = [match for match in map(_TIMESTAMP.fullmatch, texts) if match and match[2] in (None, "+00")]
    if len(matches) < len(texts) or any(match[3] not in (None, "00") for match in matches):
        return None
    try:
        return np.array([match[1] for match in matches], dtype="M8[ns]").astype(np.int64)
    except ValueError:  # the 30th of February
        return None


def _one_timestamp(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        wanted = "a time such as 2023-11-16 18:17:03.9799600, in 1970 to 2069"
        raise ValueError(f"expected {wanted}; found {shown(text)}")
    try:
        local = int(np.datetime64(match[1], "ns").astype(np.int64))
    except ValueError:
        raise ValueError(f"there is no such date or time as {shown(text)}") from None
    if match[2] is None:
        return local
    minutes = int(match[3]) if match[2][0] == "+" else -int(match[3])
    return local - (int(match[2]) * 60 + minutes) * 60 * NS


def _brief(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
