"""`simulator.load_results`: reading results directories."""

from __future__ import annotations

from pathlib import Path

from simulator.api.boundary import boundary
from simulator.results import store
from simulator.results.store import Results


@boundary
def load_results(folder: str | Path) -> Results:
    """Read the results directory that `run(..., out=folder)` or `servesim run --out` wrote.

    The results of an interrupted run have `partial` True.

    Raises:
        InputError: the folder is missing, is damaged, or was written by another version.
    """
    return store.load_results(folder)
