"""Folders in which results are made before they take their place: `NAME.partial-XXXXXXXX` beside the place.

A process that ends in good time takes its own away. One that was killed leaves it; the next one that writes beside it
tells it from that of a live process by the lock on the folder, which ends with its owner, and takes it away.
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
#: What a staging_folder may hold: the new results, and the earlier ones while they change places.
NEW, OLD = "new", "old"


@contextlib.contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target`, locked by this process, that is gone in the end; what killed ones left goes before.

    Raises OSError if it cannot be made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear(target.parent)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{target.name}{_MARK}", dir=target.parent))
        lock = _locked(folder)
        if lock is not None:
            break  # else another process took it for one that was left, in the moment before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _clear(above: Path) -> None:
    """Take away the workshops in `above` whose process has ended, and put earlier results back in their place."""
    for folder in sorted(above.iterdir()):
        match = _NAME.fullmatch(folder.name)
        if match is None or not folder.is_dir() or folder.is_symlink() or not _is_ours(folder):
            continue
        lock = _locked(folder)
        if lock is None:
            continue
        with contextlib.suppress(OSError):
            if (folder / OLD).is_dir() and not (above / match[1]).exists():
                (folder / OLD).rename(above / match[1])  # it was killed while the two changed places
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _is_ours(folder: Path) -> bool:
    """Whether a folder of that name holds nothing but what a staging_folder does."""
    with contextlib.suppress(OSError):
        return {entry.name for entry in folder.iterdir()} <= {NEW, OLD}
    return False


def _locked(folder: Path) -> int | None:
    """The descriptor of the lock on a folder; None if another process has it, or the folder is gone."""
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
