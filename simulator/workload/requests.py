"""Requests: a table of columns, and one frozen `Request` for each row.

All values are drawn or read before the run, by request index, so that all compared designs serve the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.common.notes import Note

Ints = NDArray[np.integer]

#: Columns of a `RequestTable` with an entry for each request.
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


class Request(NamedTuple):
    """One request. The service is given `max_tokens`, but not `output_tokens`, the length of the output.

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


class ClosedLoop(NamedTuple):
    """Clients of a closed loop: one sends request i `think_ns[i]` after its previous request ended."""

    concurrency: int
    think_ns: Ints


@dataclass(frozen=True, slots=True)
class RequestTable:
    """N requests in order of arrival (equal ones in file order). Arrays have N entries; times are ns.

    `arrival_ns` is the time at which the client wants to send; it is 0 in a closed loop, where `closed_loop` applies
    instead. Clients send at most `max_concurrency` requests at a time. `prompt_id` is the number of the distinct prompt
    where prompts repeat (-1: unique). `ids` are the trace's; without them a request's id is its index. `extras` holds
    further columns of a trace (session, tenant, priority, deadline_ns, cancel_ns), by name; `notes` report changes and
    problems.
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
