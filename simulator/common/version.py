"""The version of the installed distribution."""

from __future__ import annotations


def version() -> str:
    """Return the distribution's version, or `unknown` if it is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("servesim")
    except PackageNotFoundError:
        return "unknown"
