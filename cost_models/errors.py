"""Exceptions about what the user gave: each has a text of one line, fit for a user."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

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
    """The error about a `kind` (such as "model") that is not `known`: it lists the nearest names, or all of
    them.

    Of a name with slashes, such as a Hugging Face id, the last part is compared.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[-_COMPARED:].lower().rpartition("/")[2], names, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return CostModelError(f"unknown {kind} {shown(name)}; {hint}")


def shown(value: object) -> str:
    """A value from a file as an error message shows it: on one line, of bearable length, however long or nested."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}...")
    text = repr(value) if isinstance(value, int | float | None) else reprlib.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
