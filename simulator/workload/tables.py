"""What every source of requests shares: limits, and the table from the columns that it has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.workload.requests import ClosedLoop, Ints, RequestTable

#: Numbers beyond these are mistakes: they are refused before they fill the memory or wrap in 64 bits.
MAX_REQUESTS = 10**8
MAX_TOKENS = 10**8
MAX_SECONDS = 100 * 31_557_600  # a century
NS = 10**9

#: `max_tokens` of a request whose trace does not say it, until `selection` puts a number there.
UNTOLD = -1

DEFAULT_CLASS = "default"


def make_table(
    arrival_ns: Ints,
    prompt_tokens: Ints,
    output_tokens: Ints,
    *,
    max_tokens: Ints | None = None,
    class_id: Ints | None = None,
    class_names: tuple[str, ...] = (DEFAULT_CLASS,),
    prompt_id: Ints | None = None,
    prefix_id: Ints | None = None,
    prefix_tokens: Ints | None = None,
    closed_loop: ClosedLoop | None = None,
    ids: tuple[str, ...] | None = None,
    extras: dict[str, NDArray[np.generic]] | None = None,
) -> RequestTable:
    """The table of these columns; those left out mean one class, unique prompts, no `max_tokens` told."""
    n = len(arrival_ns)
    return RequestTable(
        arrival_ns=arrival_ns,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=_or_constant(max_tokens, UNTOLD, n),
        class_id=_or_constant(class_id, 0, n),
        class_names=class_names,
        prompt_id=_or_constant(prompt_id, -1, n),
        prefix_id=_or_constant(prefix_id, -1, n),
        prefix_tokens=_or_constant(prefix_tokens, 0, n),
        closed_loop=closed_loop,
        ids=ids,
        extras=extras or {},
    )


def numbered(names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Numbers for names, and the different names by number, in order of first appearance."""
    different = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([different[name] for name in names], dtype=np.int64), tuple(different)


def _or_constant(column: Ints | None, value: int, n: int) -> Ints:
    return np.full(n, value, dtype=np.int64) if column is None else column
