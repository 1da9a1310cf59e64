"""Exceptions about what the user gave: each has a text of one line, fit for a user."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence

#: Characters of a value in an error message.
_SHOWN = 60
#: Characters of an unknown name that are compared with the known ones.
_COMPARED = 100


class InputError(ValueError):
    """A mistake in what the user gave: a file, an option, a combination of the two. Its text is one line that says
    where the mistake is, what it is and, where that can be known, what to do."""


class CostModelError(InputError):
    """A model, a GPU or a combination of them that does not exist, is malformed or cannot be used."""


def unknown(kind: str, name: str, known: Iterable[str]) -> CostModelError:
    """Return the error about a `kind` (such as "model") that is not `known`, with similar names or all of them.

    Only the last part of a name with slashes, such as a Hugging Face id, is compared.
    """
    last = name[-_COMPARED:].rpartition("/")[2]
    return CostModelError(f"unknown {kind} {shown(name)}{did_you_mean(last, known, 0.5)}")


def did_you_mean(name: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return the end of an error about an unknown `name`: the `known` names like it, or all of them if none is."""
    names = sorted(known)
    return suggestion(near_names(name, names, alike)) or (f"; known: {', '.join(names)}" if names else "")


def near_names(name: str, known: Sequence[str], alike: float = 0.6) -> list[str]:
    """Return up to three of the `known` names that are like `name`, the most similar first.

    `alike` is the least similarity that counts, from 0 to 1, as `difflib` has it. Of a long name the beginning is
    compared.
    """
    return difflib.get_close_matches(name[:_COMPARED].lower(), known, 3, alike)


def suggestion(names: Sequence[str]) -> str:
    """Return the end of an error that suggests `names`; empty if there are none."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


def shown(value: object) -> str:
    """A value from a file as an error message shows it: on one line, of bearable length, however long or nested."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}...")
    text = repr(value) if isinstance(value, int | float | None) else reprlib.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
