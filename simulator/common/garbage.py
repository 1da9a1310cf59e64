"""A pause of Python's garbage collection."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the search for reference cycles, for code that makes many objects and no cycles.

    The search visits all objects again and again, so that its cost grows faster than their number.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()  # then unfrozen: this moves the new objects to the oldest generation, which is searched rarely
            gc.unfreeze()
            gc.enable()
