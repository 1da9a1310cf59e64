"""Garbage collection, where it is a waste."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """No search for reference cycles meanwhile, for code that makes many objects and no cycles.

    The search goes over all objects time and again, so that its cost grows faster than their number.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
