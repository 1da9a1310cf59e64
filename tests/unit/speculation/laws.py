"""Laws for tests: random ones, with zeros and certainties among them, and those of texts of Markov chains."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from simulator.speculation.sampling import Law

#: Weights of tokens; 0 is likely, so that supports differ.
_weights = st.one_of(st.just(0.0), st.floats(0.01, 1))


@st.composite
def laws(draw: st.DrawFn, number: int = 2, most: int = 6) -> tuple[Law, ...]:
    """Return `number` laws over one vocabulary of 2 to `most` tokens."""
    size = draw(st.integers(2, most))
    vectors = st.lists(_weights, min_size=size, max_size=size).filter(any)
    return tuple(np.array(found) / sum(found) for found in (draw(vectors) for _ in range(number)))


def joint_law(chain: Law, length: int) -> Law:
    """Return the law of the first `length` tokens after token 0, in the order of `numbered`."""
    size = len(chain)
    law = np.empty(size**length)
    for index, text in enumerate(itertools.product(range(size), repeat=length)):
        law[index] = np.prod([chain[a, b] for a, b in itertools.pairwise((0, *text))])
    return law


def numbered(texts: np.ndarray, size: int) -> np.ndarray:
    """Return the number of times that each text occurs."""
    length = texts.shape[1]
    return np.bincount(texts @ size ** np.arange(length - 1, -1, -1), minlength=size**length)
