"""Reader of the native format: CSV with a header, or JSON lines, with one request a line.

Required: `arrival_s` (seconds on any clock that starts at 0), `prompt_tokens`, `output_tokens`. Optional, and
empty or null where a request has none: `max_tokens`; `session`, `class`, `tenant` (text); `priority` (whole
number); `deadline_s` and `cancel_s` (seconds after the request's arrival); `prefix_id` with `prefix_tokens` (the
number of tokens at the beginning of the prompt that are the same for all requests with this id); and `id` (unique; if
one request has one, all must).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.workload.formats.cells import Cells, Columns, read_cells, shown
from simulator.workload.formats.source import Source
from simulator.workload.formats.values import seconds_to_ns, token_counts, whole_numbers
from simulator.workload.requests import Ints, RequestTable
from simulator.workload.tables import DEFAULT_CLASS, UNSET, make_table, numbered

_NONE = -1
_NO_PRIORITY = 0

#: By column of numbers: its reader, and the value of an empty cell (None: an error).
_NUMBERS: dict[str, tuple[Callable[..., Ints], int | None]] = {
    "arrival_s": (seconds_to_ns, None),
    "prompt_tokens": (token_counts, None),
    "output_tokens": (token_counts, None),
    "max_tokens": (token_counts, UNSET),
    "priority": (partial(whole_numbers, low=-(2**31), high=2**31 - 1), _NO_PRIORITY),
    "deadline_s": (seconds_to_ns, _NONE),
    "cancel_s": (seconds_to_ns, _NONE),
    "prefix_tokens": (partial(token_counts, low=0), _NONE),
}
_TEXTS = ("id", "session", "class", "tenant", "prefix_id")

COLUMNS = Columns(
    required=tuple(name for name, (_, missing) in _NUMBERS.items() if missing is None),
    optional=(*(name for name, (_, missing) in _NUMBERS.items() if missing is not None), *_TEXTS),
    text=frozenset(_TEXTS),
)


class _Trace(NamedTuple):
    """The rows read: the line number of each, and the columns."""

    path: str
    lines: list[int]
    numbers: dict[str, Ints]
    texts: dict[str, list[str]]

    def fail(self, row: int, column: str, why: str) -> NoReturn:
        raise InputError(f"{self.path}:{self.lines[row]}: {column}: {why}")


def read(source: Source) -> RequestTable:
    """Read the requests of a native trace, in file order, with arrivals in ns on the trace's clock.

    Raises:
        InputError: the text is `file:line: column: problem`.
    """
    trace = _read(source)
    class_id, class_names = numbered([name or DEFAULT_CLASS for name in trace.texts["class"]])
    numbers = trace.numbers
    return replace(
        make_table(numbers["arrival_s"], numbers["prompt_tokens"], numbers["output_tokens"]),
        max_tokens=numbers["max_tokens"],
        class_id=class_id,
        class_names=class_names,
        prefix_id=_prefix_id(trace),
        prefix_tokens=np.maximum(numbers["prefix_tokens"], 0),
        ids=_unique_ids(trace),
        extras=_extras(trace),
    )


def _read(source: Source) -> _Trace:
    lines: list[int] = []
    numbers: dict[str, list[Ints]] = {name: [] for name in _NUMBERS}
    texts: dict[str, list[str]] = {name: [] for name in _TEXTS}
    for cells in read_cells(source, COLUMNS):
        lines.extend(cells.numbers)
        for name in _NUMBERS:
            numbers[name].append(_number_column(cells, name))
        for name in _TEXTS:
            texts[name].extend(_text_column(cells, name))
    if not lines:
        source.fail("no requests after the header")
    return _Trace(source.path, lines, {name: np.concatenate(parts) for name, parts in numbers.items()}, texts)


def _number_column(cells: Cells, name: str) -> Ints:
    convert, missing = _NUMBERS[name]
    if missing is not None and not any(cells.columns.get(name, ())):
        return np.full(len(cells), missing, dtype=np.int64)
    return convert(cells, name, missing=missing)


def _text_column(cells: Cells, name: str) -> list[str]:
    texts = list(cells.columns.get(name) or [""] * len(cells))
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: valid in JSON, but no output could write it
        row = next(i for i, text in enumerate(texts) if any("\ud800" <= char <= "\udfff" for char in text))
        cells.fail(row, name, f"{shown(texts[row])} is not Unicode text")
    return texts


def _prefix_id(trace: _Trace) -> Ints:
    names, tokens = trace.texts["prefix_id"], trace.numbers["prefix_tokens"]
    named = np.array([bool(name) for name in names])
    for wrong, why in (
        (named & (tokens == _NONE), "missing beside prefix_id"),
        (~named & (tokens > 0), "has no meaning without prefix_id"),
        (tokens > trace.numbers["prompt_tokens"], "must not be more than prompt_tokens"),
    ):
        if wrong.any():
            trace.fail(int(wrong.argmax()), "prefix_tokens", why)
    return np.where(named, numbered(names)[0], _NONE)


def _unique_ids(trace: _Trace) -> tuple[str, ...] | None:
    ids = trace.texts["id"]
    if not any(ids):
        return None
    if "" in ids:
        trace.fail(ids.index(""), "id", "missing, though other requests have one")
    if len(set(ids)) < len(ids):
        first: dict[str, int] = {}
        row = next(i for i, name in enumerate(ids) if first.setdefault(name, i) != i)
        trace.fail(row, "id", f"{shown(ids[row])} is already on line {trace.lines[first[ids[row]]]}")
    return tuple(ids)


def _extras(trace: _Trace) -> dict[str, NDArray[np.generic]]:
    """Return the further columns in which any request has a value, by the names of `RequestTable.extras`."""
    extras: dict[str, NDArray[np.generic]] = {}
    for name in ("session", "tenant"):
        if any(trace.texts[name]):
            extras[name] = np.array(trace.texts[name], dtype=object)
    for name, column, missing in (
        ("priority", "priority", _NO_PRIORITY),
        ("deadline_ns", "deadline_s", _NONE),
        ("cancel_ns", "cancel_s", _NONE),
    ):
        if (trace.numbers[column] != missing).any():
            extras[name] = trace.numbers[column]
    return extras
