"""Exceptions about what the user gave: each has a text of one line, fit for a user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    near = difflib.get_close_matches(name.lower().rpartition("/")[2], names, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return CostModelError(f"unknown {kind} {name!r}; {hint}")
