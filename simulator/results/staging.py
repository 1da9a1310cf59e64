"""Temporary folders in which results are written before they are moved into place: `NAME.partial-XXXXXXXX`.

A process removes its own folder at the end. The folder of a killed process is removed by the next process that writes
to the same parent folder; it has no lock, since the lock of a process ends with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MARK = ".partial-"
_NAME = re.compile(rf"(.+){re.escape(_MARK)}[a-z0-9_]{{8}}")
#: Entries of a staging folder: the new results, and the earlier ones while they are replaced.
NEW, OLD = "new", "old"


@contextlib.contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Create a folder beside `target`, locked by this process, and remove it at the end.

    Folders of killed processes are removed first.

    Raises:
        OSError: the folder cannot be created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear(target.parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{target.name}{_MARK}", dir=target.parent))
        lock = _lock(folder)
        if lock is not None:
            break  # else another process removed it before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _clear(above: Path) -> None:
    """Remove the staging folders in `above` of ended processes, and restore earlier results from them."""
    for folder in sorted(above.iterdir()):
        match = _NAME.fullmatch(folder.name)
        if match is None or not folder.is_dir() or folder.is_symlink() or not _is_staging_folder(folder):
            continue
        lock = _lock(folder)
        if lock is None:
            continue
        with contextlib.suppress(OSError):
            if (folder / OLD).is_dir() and not (above / match[1]).exists():
                (folder / OLD).rename(above / match[1])  # the process was killed during the exchange
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _is_staging_folder(folder: Path) -> bool:
    """Return whether a folder has only entries of a staging folder."""
    with contextlib.suppress(OSError):
        return {entry.name for entry in folder.iterdir()} <= {NEW, OLD}
    return False


def _lock(folder: Path) -> int | None:
    """Return the descriptor of the lock on a folder; None if another process holds it, or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == folder.stat().st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
