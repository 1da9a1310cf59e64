"""The exceptions of servesim: `InputError` for wrong input, and `StalledError` for a deadlock.

The message of an `InputError` is a single line with the place of the mistake, its description and, if known, a remedy.
The command line prints the line, without a traceback, and exits with code 2.
"""

from __future__ import annotations

from cost_models.errors import InputError, did_you_mean

__all__ = ["InputError", "StalledError", "did_you_mean"]


class StalledError(RuntimeError):
    """Deadlock of a policy: a replica has unfinished requests, but can never schedule any of them."""
