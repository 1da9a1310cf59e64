"""Writer of the CSV of kernel timings, as a whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cost_models.calibration.schema import COLUMNS
from cost_models.errors import CostModelError


def check_writable(path: Path) -> None:
    """Verify, before anything is measured, that a file can be created at `path`. Raises CostModelError if not."""
    folder = path.resolve().parent
    if path.is_dir():
        raise CostModelError(f"{path}: is a folder; give the name of a CSV file")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise CostModelError(f"{path}: no file can be created in {folder}; choose another place")


def write_rows(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write a CSV of the given cells, which replaces an earlier file at `path` when it is complete.

    Raises CostModelError if the disk fails; the earlier file is then unchanged.
    """
    new = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        try:
            with new.open("x", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise CostModelError(f"{path}: could not be written: {error.strerror or error}") from error
