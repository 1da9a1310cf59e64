"""Reader of the rows of a file as columns of text: CSV with a header, or JSON lines.

A missing cell is the empty text. `values` converts the cells.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from simulator.errors import InputError, did_you_mean
from simulator.workload.formats.source import Block, Source


class Columns(NamedTuple):
    """Columns of a format. JSON values are numbers; in the columns of `text` they may also be strings."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    text: frozenset[str] = frozenset()

    @property
    def known(self) -> tuple[str, ...]:
        """All columns."""
        return self.required + self.optional


class Cells(NamedTuple):
    """Some rows of a file: `numbers[i]` is the line number of row i, `columns[name][i]` its text in a column."""

    path: str
    numbers: Sequence[int]
    columns: dict[str, Sequence[str]]

    def __len__(self) -> int:
        return len(self.numbers)

    def fail(self, row: int, column: str, why: str) -> NoReturn:
        """Raise InputError about the cell of `column` in `row`, with the reason `why`."""
        raise InputError(f"{self.path}:{self.numbers[row]}: {column}: {why}")


def column_names(source: Source) -> list[str]:
    """Return the names in the head of the file: the CSV header, or the keys of the first JSON object.

    Raises:
        InputError: the head is neither.
    """
    if source.head.lstrip().startswith("["):
        source.fail("a JSON array; write one object a line (JSON lines)")
    if is_json(source):
        return list(_json_row(source.path, source.head_number, source.head))
    return [name.strip() for name in _csv_row(source.path, source.head_number, source.head)]


def is_json(source: Source) -> bool:
    """Return whether the file is read as JSON lines."""
    return source.head.lstrip().startswith("{")


def read_cells(source: Source, columns: Columns) -> Iterator[Cells]:
    """Read the file block by block.

    Raises:
        InputError: `file:line: ...` for a malformed line, an unknown, repeated or missing column, a row with another
            number of values than the header, or a JSON value of the wrong type.
    """
    return _json_cells(source, columns) if is_json(source) else _csv_cells(source, columns)


def shown(text: str) -> str:
    """Return `text` for an error message: quoted, on one line, shortened if long."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


# --- CSV ----------------------------------------------------------------------------------------------------


def _csv_cells(source: Source, columns: Columns) -> Iterator[Cells]:
    header = column_names(source)
    _check_header(source, header, columns)
    skip = 1
    for block in source.blocks:
        rows, numbers = _csv_rows(source.path, block)[skip:], block.numbers[skip:]
        skip = 0
        if not rows:
            continue
        if set(map(len, rows)) != {len(header)}:
            row = next(i for i, row in enumerate(rows) if len(row) != len(header))
            why = f"expected {len(header)} values ({','.join(header)}), found {len(rows[row])}"
            raise InputError(f"{source.path}:{numbers[row]}: {why}")
        yield Cells(source.path, numbers, dict(zip(header, zip(*rows, strict=True), strict=True)))


def _check_header(source: Source, header: list[str], columns: Columns) -> None:
    for i, name in enumerate(header):
        if name not in columns.known:
            source.fail(f"{shown(name)}: unknown column{did_you_mean(name, columns.known)}")
        if name in header[:i]:
            source.fail(f"{name}: this column is there twice")
    for name in columns.required:
        if name not in header:
            source.fail(f"{name}: this column is missing")


def _csv_rows(path: str, block: Block) -> list[list[str]]:
    try:
        rows = list(csv.reader(block.lines, skipinitialspace=True, strict=True))
    except csv.Error:
        rows = []
    # Fewer rows than lines: a quoted value contains the end of a line, which no valid value does.
    if len(rows) != len(block.lines):
        rows = [_csv_row(path, *numbered) for numbered in zip(block.numbers, block.lines, strict=True)]
    return rows


def _csv_row(path: str, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}:{number}: not valid CSV: {error}") from None


# --- JSON lines ---------------------------------------------------------------------------------------------


class _Number(str):
    """A JSON number as it was written, so that a conversion to float cannot lose digits."""

    __slots__ = ()


#: An object becomes the tuple of its (key, value) pairs: repeated keys stay visible, and it differs from a list.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_Number, parse_int=_Number, parse_constant=_Number)


def _json_cells(source: Source, columns: Columns) -> Iterator[Cells]:
    for block in source.blocks:
        rows = [_json_row(source.path, *line) for line in zip(block.numbers, block.lines, strict=True)]
        cells = Cells(source.path, block.numbers, dict.fromkeys(columns.required, ("",) * len(rows)))
        for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
            if name not in columns.known:
                row = next(i for i, row in enumerate(rows) if name in row)
                cells.fail(row, shown(name), f"unknown key{did_you_mean(name, columns.known)}")
            cells.columns[name] = _json_column(cells, name, [row.get(name) for row in rows], columns)
        yield cells


def _json_row(path: str, number: int, line: str) -> dict[str, Any]:
    try:
        pairs = _DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{number}: not valid JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise InputError(f"{path}:{number}: not valid JSON: nested too deeply") from None
    if not isinstance(pairs, tuple):
        raise InputError(f"{path}:{number}: expected a JSON object, found {_kind(pairs)}")
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}:{number}: {shown(twice)}: this key is there twice")
    return row


def _json_column(cells: Cells, name: str, values: list[Any], columns: Columns) -> list[str]:
    wanted, types = "a number", {_Number, type(None)}
    if name in columns.text:
        wanted, types = "text", {*types, str}
    if not types.issuperset(map(type, values)):
        row = next(i for i, value in enumerate(values) if type(value) not in types)
        cells.fail(row, name, f"expected {wanted}, found {_kind(values[row])}")
    return ["" if value is None else value for value in values]


def _kind(value: Any) -> str:
    if isinstance(value, _Number):
        return "a number"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    if isinstance(value, list | tuple):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)
