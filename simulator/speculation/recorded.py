"""Reader of recorded counts of accepted drafts: JSON Lines, one request a line."""

from __future__ import annotations

from pathlib import Path

from cost_models.files.documents import json_lines
from cost_models.files.fields import Fields
from simulator.errors import InputError

#: Limit of the accepted drafts of one step.
_MOST_DRAFTS = 1000


def read_counts(path: Path, where: str) -> list[list[int]]:
    """Read the counts of each line's `accepted`, a list of whole numbers from 0; `where` is the place for errors.

    Raises:
        InputError: the file cannot be read, has no lines, or a line has another form.
    """
    try:
        found = [_counts(place, entry) for place, entry in json_lines(path)]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if not found:
        raise InputError(f"{where}: {path}: has no lines; each needs the counts of a request, {{'accepted': [2, 0]}}")
    return found


def _counts(place: str, entry: object) -> list[int]:
    fields = Fields(place, entry)
    counts = [int(each) for each in fields.numbers("accepted", most=_MOST_DRAFTS, whole=True)]
    if not counts:
        raise fields.error("accepted", "expected a count for each step, found none")
    return counts
