"""Notes and warnings of a run: a stable code for programs, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader of a result must know. `code` never changes; `text` says what it means for the numbers."""

    code: str
    text: str
