"""Arrays in temporary files: large ones are mapped into memory, and their pages are released between uses.

The files are in the folder for temporary files (`TMPDIR`) and have no name, so that they go with the process. Where
there is no space for them, or no call to release pages, arrays are in memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import IO, Any, NamedTuple
from weakref import ReferenceType, WeakSet, ref

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Arrays of fewer bytes are in memory.
LEAST_BYTES = 1 << 22
#: Entries that are read, written or computed at a time.
CHUNK = 1 << 18

_CAN_RELEASE = hasattr(mmap, "MADV_DONTNEED") and hasattr(os, "posix_fallocate")
_mappings: WeakSet[mmap.mmap] = WeakSet()


def zeros(count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros, in a file if it is large."""
    size = count * np.dtype(dtype).itemsize
    if size < LEAST_BYTES or not _CAN_RELEASE:
        return np.zeros(count, dtype)
    try:
        with _temporary_file() as file:
            os.posix_fallocate(file.fileno(), 0, size)
            mapping = mmap.mmap(file.fileno(), size)
    except OSError:
        return np.zeros(count, dtype)
    _mappings.add(mapping)
    return np.frombuffer(mapping, dtype)


def stored(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of the array in a file if it is large, else the array itself."""
    if values.nbytes < LEAST_BYTES:
        return values
    copy = zeros(len(values), values.dtype)
    for rows in chunks(len(values)):
        copy[rows] = values[rows]
    release()
    return copy


def chunks(count: int) -> list[slice]:
    """Return the slices of at most `CHUNK` entries that make up an array of `count` entries, in order."""
    return [slice(begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK)]


def release() -> None:
    """Release the pages of all arrays in files from memory; those that are used again are read from the files."""
    for mapping in list(_mappings):
        mapping.madvise(mmap.MADV_DONTNEED)


class Stored(NamedTuple):
    """A piece of a column in a file: its offset and its size in bytes, and the type of its entries."""

    offset: int
    size: int
    dtype: np.dtype[Any]


Piece = NDArray[Any] | Stored


class Spool:
    """An append-only temporary file for pieces of columns, of which the first `LEAST_BYTES` are kept in memory."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._held = self._size = 0
        self._full = False

    def keep(self, pieces: Sequence[NDArray[Any]]) -> Sequence[Piece]:
        """Write the pieces to the file and return their places in it; or return the pieces if they stay in memory."""
        if self._held < LEAST_BYTES or self._full:
            self._held += sum(piece.nbytes for piece in pieces)
            return pieces
        begin, places = self._size, []
        for piece in pieces:
            places.append(Stored(self._size, piece.nbytes, piece.dtype))
            self._size += piece.nbytes
        try:
            if self._file is None:
                self._file = _temporary_file()
            data = b"".join(piece.data for piece in pieces)
            self._full = os.pwrite(self._file.fileno(), data, begin) < len(data)
        except OSError:
            self._full = True
        return pieces if self._full else places

    def read(self, piece: Piece) -> NDArray[Any]:
        """Return the entries of a piece."""
        if not isinstance(piece, Stored):
            return piece
        assert self._file is not None
        return np.frombuffer(os.pread(self._file.fileno(), piece.size, piece.offset), piece.dtype)


_shared: ReferenceType[Spool] | None = None


def shared_spool() -> Spool:
    """Return the spool of all logs of this process; its file is removed with the last log that uses it."""
    global _shared
    spool = None if _shared is None else _shared()
    if spool is None:
        spool = Spool()
        _shared = ref(spool)
    return spool


def _temporary_file() -> IO[bytes]:
    import tempfile  # only for large runs, since it takes a while to import

    return tempfile.TemporaryFile(prefix="servesim-", buffering=0)
