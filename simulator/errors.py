"""The one exception that means "the user's input is wrong", `InputError`; errors of `cost_models` are of its kind.

Everything that reads input raises it with a single line that says where the mistake is, what it is and, where that
can be known, what to do. The command line prints the line and exits with code 2; no traceback reaches a user.
"""

from __future__ import annotations

from cost_models.errors import InputError, did_you_mean

__all__ = ["InputError", "StalledError", "did_you_mean"]


class StalledError(RuntimeError):
    """A replica with unfinished requests can schedule none of them, ever: its policy has deadlocked."""
