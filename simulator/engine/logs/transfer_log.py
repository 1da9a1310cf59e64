"""The logs of KV transfers between engine cores, and from CPU memory."""

from __future__ import annotations

from array import array
from dataclasses import fields
from itertools import chain

import numpy as np

from simulator.results.columns import (
    OffloadColumns,
    TransferColumns,
)


class TransferLog:
    """Log with one row for each transferred request, from its arrival on; columns as in `TransferColumns`."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []

    def open(self, index: int, source: int, target: int) -> list[int]:
        """Add the row of request `index`, from core `source` to `target`; return it, with entries by `Moment`."""
        row = [index, source, target, -1, -1, -1, -1, -1, 0, 0, 0]
        self._rows.append(row)
        return row

    def columns(self) -> TransferColumns:
        """Return the rows written so far as columns."""
        names = [field.name for field in fields(TransferColumns)]
        numbers = array("q", chain.from_iterable(self._rows))  # several times faster than an array of the rows
        columns = np.frombuffer(numbers, np.int64).reshape(-1, len(names)).T
        return TransferColumns(**{name: column.copy() for name, column in zip(names, columns, strict=True)})


class OffloadLog:
    """Log with one row for each lookup that found blocks in CPU memory; its columns are those of `OffloadColumns`."""

    def __init__(self) -> None:
        self.request, self.replica, self.tokens = array("q"), array("q"), array("q")
        self.found_ns, self.loaded_ns, self.bytes = array("q"), array("q"), array("q")

    def open(self, index: int, replica: int, tokens: int, now: int) -> int:
        """Add the row of `tokens` tokens found for request `index`, not loaded yet; return its number."""
        for column, value in (
            (self.request, index),
            (self.replica, replica),
            (self.tokens, tokens),
            (self.found_ns, now),
            (self.loaded_ns, -1),
            (self.bytes, 0),
        ):
            column.append(value)
        return len(self.request) - 1

    def columns(self) -> OffloadColumns:
        """Return the rows written so far as columns."""
        return OffloadColumns(
            **{each.name: np.frombuffer(getattr(self, each.name), np.int64) for each in fields(OffloadColumns)}
        )


class Moment:
    """Positions of the entries of a transfer's row that become known during the transfer; ints, since members of an
    enumeration are slow."""

    PREFILL_END = 3
    RESERVED = 4
    START = 5
    ARRIVED = 6
    JOINED = 7
    BYTES = 8
    FAILURES = 9
    RECOMPUTED = 10
