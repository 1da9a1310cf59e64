"""Readers of text, CSV, JSON and JSON lines from files of any content, with limits of memory and errors in one line.

All readers of text files use this module or, for YAML, `nodes`, which is based on it. `Fields` gives typed access to
the mappings.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from cost_models.errors import InputError, shown

#: Limits that no valid file exceeds: the bytes of a document that is read at once, and of one line of a file of lines.
LARGEST_DOCUMENT = 1 << 30
LONGEST_LINE = 1 << 24
#: Most levels of nesting.
DEEPEST = 64
_BLOCK = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn errors of opening, reading or unpacking the file `name` into an InputError."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{name}: damaged gzip file: {error}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None


def opened(path: Path, name: str | None = None) -> BinaryIO:
    """Open the file at `path` for its bytes, unpacked if it is gzip; errors name it `name`, or else its path.

    Raises InputError if it cannot be opened.
    """
    with readable(name or str(path)):
        raw = _open(path)
        packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw


def _open(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except ValueError as error:  # a zero byte in the path
        raise InputError(f"{shown(str(path))}: no file can have this name: {error}") from None


def read_text(path: Path, largest: int = LARGEST_DOCUMENT, name: str | None = None) -> str:
    """Return the text of the file at `path`, of at most `largest` bytes, without a byte order mark.

    Errors name the file `name`, or else its path.

    Raises:
        InputError: it cannot be read, is larger, or is not UTF-8.
    """
    name = name or str(path)
    with readable(name), _open(path) as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        raise InputError(f"{name}: is larger than {largest >> 20} MiB, which no file of this kind is")
    return decoded(data, name, 1)


def decoded(data: bytes, name: str, first: int) -> str:
    """Return the text of `data`, which begins in line `first` of the file `name`. Raises InputError if it is not
    UTF-8."""
    if first == 1:
        data = data.removeprefix(_BOM)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise InputError(f"{name}:{line}: not UTF-8 text; save the file as UTF-8") from None


def line_blocks(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield an open file in blocks of whole lines; `name` is the file's name in errors.

    Raises:
        InputError: it cannot be read to its end, or a line is longer than `LONGEST_LINE`.
    """
    begun, line = b"", 1
    while True:
        with readable(name):
            chunk = file.read(_BLOCK)
        if not chunk:
            break
        end = chunk.rfind(b"\n") + 1
        if end:
            line += chunk.count(b"\n")
            yield begun + chunk[:end]
            begun = chunk[end:]
        else:
            begun += chunk
        if len(begun) > LONGEST_LINE:
            raise InputError(f"{name}:{line}: is longer than {LONGEST_LINE >> 20} MiB; does the file have line ends?")
    if begun:
        yield begun


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file, the header first, each with the number of its last line; empty lines are left out.

    Raises:
        InputError: as `read_text`, or it is not CSV.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not a CSV file: {error}") from None


def read_json(path: Path) -> object:
    """Return the JSON document in the file at `path`. Raises InputError as `read_text` and `parse_json` do."""
    return parse_json(read_text(path), str(path))


def json_lines(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the values of a file of JSON lines, plain or gzip, each with its `file:line`; blank lines are left out.

    Raises:
        InputError: as `line_blocks` and `parse_json`.
    """
    number, name = 0, str(path)
    with opened(path) as file:
        for block in line_blocks(file, name):
            for line in decoded(block, name, number + 1).removesuffix("\n").split("\n"):
                number += 1
                if line.strip():
                    yield f"{name}:{number}", parse_json(line, f"{name}:{number}", lines=False)


def parse_json(text: str, where: str, *, lines: bool = True) -> object:
    """Return the JSON value in `text`; `where` is the place in errors, to which `lines` adds the line.

    Raises:
        InputError: it is not JSON, has a key twice, is nested too deeply, or has a number of thousands of digits.
    """
    try:
        found: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}" if lines else f"{where}:{error.colno}"
        raise InputError(f"{place}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{where}: not valid JSON: nested too deeply") from None
    except _RepeatedKeyError as error:
        raise InputError(f"{where}: {shown(str(error))}: this key is there twice; keep one") from None
    except ValueError:
        raise InputError(f"{where}: not valid JSON: a number has thousands of digits") from None
    if _deep(found):
        raise InputError(f"{where}: nested more than {DEEPEST} levels deep")
    return found


def _deep(value: object) -> bool:
    """Return whether lists and objects are nested more than `DEEPEST` levels deep."""
    nested = {dict, list}
    level: list[Any] = [value] if type(value) in nested else []
    for _ in range(DEEPEST + 1):
        parts = (each.values() if type(each) is dict else each for each in level)
        deeper = (part for part in parts if not nested.isdisjoint(map(type, part)))  # lists of numbers are long
        level = [child for part in deeper for child in part if type(child) in nested]
        if not level:
            return False
    return True


class _RepeatedKeyError(ValueError):
    """A repeated key in a JSON object: all but one of its values would be lost."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(next(name for at, name in enumerate(names) if name in names[:at]))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
