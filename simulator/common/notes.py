"""Notes and warnings of a run: a stable code for programs, a text for users."""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """A note or warning on a result. `code` is stable over versions; `text` explains the effect on the numbers."""

    code: str
    text: str
