"""Requests as the rest of the simulator meets them: a table of columns, and one frozen `Request` a row.

Everything in it is exogenous: drawn or read before the run, by request index, so that every design that is compared
meets the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.common.notes import Note

Ints = NDArray[np.integer]

#: Columns of a `RequestTable` that every request has an entry in.
PER_REQUEST = (
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "class_id",
    "prompt_id",
    "prefix_id",
    "prefix_tokens",
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `max_tokens` is what the service is told; `output_tokens` is what it will find out.

    The first `prefix_tokens` of the prompt are the same for all requests with this `prefix_id` (-1: shared with none).
    """

    id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    class_name: str
    prefix_id: int = -1
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that send their next request `think_ns[i]` after their last one ended, for request i."""

    concurrency: int
    think_ns: Ints


@dataclass(frozen=True, slots=True)
class RequestTable:
    """N requests in order of arrival (equal ones in file order). Arrays have N entries; times are ns.

    `arrival_ns` is when the client wants to send; in a closed loop it is 0 and `closed_loop` says what happens instead.
    `max_concurrency` is a client-side gate. `prompt_id` names the distinct prompt where prompts repeat (-1: unique).
    `ids` are the trace's own; without them a request's id is its index. `extras` holds further columns of a trace
    (session, tenant, priority, deadline_ns, cancel_ns), by name; `notes` what the reader changed or found.
    """

    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    class_id: Ints
    class_names: tuple[str, ...]
    prompt_id: Ints
    prefix_id: Ints
    prefix_tokens: Ints
    closed_loop: ClosedLoop | None = None
    max_concurrency: int | None = None
    ids: tuple[str, ...] | None = None
    extras: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __getitem__(self, index: int) -> Request:
        return Request(
            id=self.ids[index] if self.ids is not None else str(index),
            arrival_ns=int(self.arrival_ns[index]),
            prompt_tokens=int(self.prompt_tokens[index]),
            output_tokens=int(self.output_tokens[index]),
            max_tokens=int(self.max_tokens[index]),
            class_name=self.class_names[self.class_id[index]],
            prefix_id=int(self.prefix_id[index]),
            prefix_tokens=int(self.prefix_tokens[index]),
        )
