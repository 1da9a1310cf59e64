"""Exceptions about the user's input: each has a text of one line for the user."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence

#: Characters of a value in an error message.
_SHOWN = 60
#: Characters of an unknown name that are compared with known names.
_COMPARED = 100


class InputError(ValueError):
    """A mistake in the user's input: in a file, in an option, or in a combination of options. Its text is one line with
    the place of the mistake, the mistake and, if it is known, the remedy."""


class CostModelError(InputError):
    """A model, a GPU or a combination of both that does not exist, is malformed or cannot be used."""


def unknown(kind: str, name: str, known: Iterable[str]) -> CostModelError:
    """Return the error about a `kind` (such as "model") that is not `known`, with similar names or all of them.

    Only the last part of a name with slashes, such as a Hugging Face id, is compared.
    """
    last = name[-_COMPARED:].rpartition("/")[2]
    return CostModelError(f"unknown {kind} {shown(name)}{did_you_mean(last, known, 0.5)}")


def did_you_mean(name: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return the end of an error about an unknown `name`: the similar names of `known`, or all if none is similar."""
    names = sorted(known)
    return suggestion(near_names(name, names, alike)) or (f"; known: {', '.join(names)}" if names else "")


def near_names(name: str, known: Sequence[str], alike: float = 0.6) -> list[str]:
    """Return up to three of the `known` names that are similar to `name`, the most similar first.

    `alike` is the least similarity, from 0 to 1, as in `difflib`. Only the beginning of a long name is compared.
    """
    import difflib

    return difflib.get_close_matches(name[:_COMPARED].lower(), known, 3, alike)


def suggestion(names: Sequence[str]) -> str:
    """Return the end of an error that suggests `names`; empty if there are none."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


def shown(value: object) -> str:
    """Return a value from a file for an error message: on one line, shortened if it is long or nested."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}...")
    text = repr(value) if isinstance(value, int | float | None) else reprlib.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
