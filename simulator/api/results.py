"""`simulator.load_results`: results directories, read again."""

from __future__ import annotations

from pathlib import Path

from simulator.api.boundary import boundary
from simulator.results import store
from simulator.results.store import Results


@boundary
def load_results(folder: str | Path) -> Results:
    """Read the results directory at `folder`, which `run(..., out=folder)` and `servesim run --out` write; that of an
    interrupted run has `partial` True.

    Raises:
        InputError: there is none, it is damaged, or another version wrote it.
    """
    return store.load_results(folder)
