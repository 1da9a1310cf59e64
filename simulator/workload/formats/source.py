"""Text files as blocks of numbered lines: plain or gzip, UTF-8, read once and in order, so a pipe will do."""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from simulator.errors import InputError
from simulator.stdin import located

_BLOCK_LINES = 1 << 13
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive lines without their ends, blank ones left out; `numbers[i]` is the number of `lines[i]`."""

    numbers: list[int]
    lines: list[str]


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is being read. `head` is its first line that is not blank; `blocks` gives all of them."""

    path: str
    head_number: int
    head: str
    blocks: Iterator[Block]

    def fail(self, why: str) -> NoReturn:
        """Raise the error that the head of the file is wrong because of `why`."""
        raise InputError(f"{self.path}:{self.head_number}: {why}")


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """The file at `path`, open while the context lasts.

    Raises:
        InputError: it cannot be read, is not UTF-8 text or valid gzip (also later, from `blocks`), or is empty.
    """
    file, name = located(path)
    with _readable(name):
        raw = file.open("rb")
    with raw:
        blocks = _blocks(_decompressed(raw, name), name)
        first = next(blocks, None)
        if first is None:
            raise InputError(f"{name}: is empty")
        yield Source(name, first.numbers[0], first.lines[0], itertools.chain([first], blocks))


def _decompressed(raw: io.BufferedReader, name: str) -> Iterable[bytes]:
    with _readable(name):
        packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
    return gzip.open(raw) if packed else raw


def _blocks(file: Iterable[bytes], name: str) -> Iterator[Block]:
    binary_lines = iter(file)
    first = 1
    while True:
        with _readable(name):
            raw = list(itertools.islice(binary_lines, _BLOCK_LINES))
        if not raw:
            return
        lines = _decoded(raw, name, first)
        numbers = [first + i for i, line in enumerate(lines) if line.strip()]
        if len(numbers) < len(lines):
            lines = [lines[number - first] for number in numbers]
        if lines:
            yield Block(numbers, lines)
        first += len(raw)


def _decoded(raw: list[bytes], name: str, first: int) -> list[str]:
    data = b"".join(raw)
    if first == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = first + data.count(b"\n", 0, error.start)
        raise InputError(f"{name}:{line}: not UTF-8 text") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{name}: damaged gzip file: {error}") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror or error}") from None
