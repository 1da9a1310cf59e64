"""Named random streams: adding a component never shifts the draws of another."""

from __future__ import annotations

import numpy as np


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of the stream `name` of `seed`; the same arguments give the same draws."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode()))))
