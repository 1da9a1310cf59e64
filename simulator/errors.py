"""The one exception that means "the user's input is wrong", `InputError`; errors of `cost_models` are of its kind.

Everything that reads input raises it with a single line that says where the mistake is, what it is and, where that
can be known, what to do. The command line prints the line and exits with code 2; no traceback reaches a user.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from cost_models.errors import InputError

__all__ = ["InputError", "StalledError", "did_you_mean"]


#: Characters of an unknown name that are compared with the known ones.
_COMPARED = 100


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or all of them if none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word[:_COMPARED].lower(), names, 3, 0.6)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known: {', '.join(names)}" if names else ""


class StalledError(RuntimeError):
    """A replica with unfinished requests can schedule none of them, ever: its policy has deadlocked."""
