"""Text files as blocks of numbered lines: plain or gzip, UTF-8; read once and in order, as pipes need it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from cost_models.files.documents import decoded, line_blocks, opened
from simulator.common.stdin import located
from simulator.errors import InputError


class Block(NamedTuple):
    """Consecutive lines without their ends, blank ones left out; `numbers[i]` is the number of `lines[i]`."""

    numbers: list[int]
    lines: list[str]


class Source(NamedTuple):
    """A file that is being read. `head` is its first line that is not blank; `blocks` yields all lines."""

    path: str
    head_number: int
    head: str
    blocks: Iterator[Block]

    def fail(self, why: str) -> NoReturn:
        """Raise InputError about the head of the file, with the reason `why`."""
        raise InputError(f"{self.path}:{self.head_number}: {why}")


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open the file at `path` inside the `with` block.

    Raises:
        InputError: it is empty, cannot be read, is not UTF-8 text or valid gzip, or has an overlong line; all but the
            first may be raised later, from `blocks`.
    """
    located_path, name = located(path)
    with opened(located_path, name) as file:
        blocks = _blocks(file, name)
        first = next(blocks, None)
        if first is None:
            raise InputError(f"{name}: is empty")
        yield Source(name, first.numbers[0], first.lines[0], itertools.chain([first], blocks))


def _blocks(file: BinaryIO, name: str) -> Iterator[Block]:
    first = 1
    for data in line_blocks(file, name):
        lines = decoded(data, name, first).replace("\r\n", "\n").removesuffix("\n").split("\n")
        count = len(lines)
        numbers = [first + i for i, line in enumerate(lines) if line.strip()]
        if len(numbers) < count:
            lines = [lines[number - first] for number in numbers]
        if lines:
            yield Block(numbers, lines)
        first += count
