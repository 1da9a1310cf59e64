"""Reads recorded counts of accepted drafts: JSON Lines, one request a line."""

from __future__ import annotations

import json
from pathlib import Path

from simulator.errors import InputError


def read_counts(path: Path, where: str) -> list[list[int]]:
    """The counts of each line's `accepted`, a list of whole numbers from 0; `where` names the file in errors.

    Raises:
        InputError: the file cannot be read, has no line, or a line is not of that form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{where}: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{where}: {path}: is not text in UTF-8") from None
    found = [_counts(line, f"{where}: {path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise InputError(f"{where}: {path}: has no lines; each needs the counts of a request, {{'accepted': [2, 0]}}")
    return found


def _counts(line: str, where: str) -> list[int]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from None
    counts = entry.get("accepted") if isinstance(entry, dict) else None
    if not isinstance(counts, list) or not counts or any(type(each) is not int or each < 0 for each in counts):
        raise InputError(f"{where}: accepted: expected a list of whole numbers from 0, found {counts!r}")
    return counts
