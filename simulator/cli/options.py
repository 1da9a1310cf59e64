"""Options that several verbs read in the same way."""

from __future__ import annotations

from simulator.errors import InputError


def whole(text: str, name: str, least: int) -> int:
    """The whole number `text`, at least `least` and not 0. Raises InputError, which names the option `name`."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value == 0:
        raise InputError(f"{name}: expected a whole number of at least {max(least, 1)}, found {text!r}")
    return value
