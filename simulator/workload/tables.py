"""Common part of the sources of requests: limits, and the table from the columns of a source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.workload.requests import Ints, RequestTable

#: Larger numbers are taken for mistakes: they are refused before they fill the memory or overflow 64 bits.
MAX_REQUESTS = 10**8
MAX_TOKENS = 10**8
MAX_SECONDS = 100 * 31_557_600  # a century
NS = 10**9

#: `max_tokens` of a request whose trace has none, until `selection` fills it in.
UNSET = -1

DEFAULT_CLASS = "default"


def make_table(arrival_ns: Ints, prompt_tokens: Ints, output_tokens: Ints) -> RequestTable:
    """Return the table of these columns, with one class, unique prompts and `max_tokens` left `UNSET`."""
    nothing, zeros, unset = (np.broadcast_to(np.int64(value), len(arrival_ns)) for value in (-1, 0, UNSET))
    return RequestTable(
        arrival_ns=arrival_ns,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_tokens=unset,
        class_id=zeros,
        class_names=(DEFAULT_CLASS,),
        prompt_id=nothing,
        prefix_id=nothing,
        prefix_tokens=zeros,
    )


def numbered(names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Return a number for each name, and the different names by number, in order of first appearance."""
    different = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([different[name] for name in names], dtype=np.int64), tuple(different)
