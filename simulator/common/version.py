"""The version of what is installed."""

from __future__ import annotations


def version() -> str:
    """The distribution's version, or `unknown` in a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("servesim")
    except PackageNotFoundError:
        return "unknown"
