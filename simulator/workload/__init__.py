"""Requests: read from a trace or drawn from laws, then selected; always before the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from simulator.scenario import traffic
from simulator.workload.formats import read_trace
from simulator.workload.requests import Request, RequestTable
from simulator.workload.selection import in_order, note_what_is_not_simulated, select, tell_max_tokens
from simulator.workload.synthetic import generate

__all__ = ["Request", "RequestTable", "load_requests"]


def load_requests(
    workload: traffic.Workload, seed: int, find: Callable[[str], Path], simulated: frozenset[str] = frozenset()
) -> RequestTable:
    """The requests that `workload` describes; `find` gives the file of a trace, `simulated` the columns
    that the deployment looks at.

    They are sorted by arrival (a stable sort, with a note), counted from a trace's first arrival, cut to the time
    window and to the limit, scaled in rate, and given their `max_tokens`, in this order.

    Raises:
        InputError: the trace has a mistake in it, or no request is left, or too many are asked for.
    """
    if workload.trace is not None:
        table = in_order(read_trace(find(workload.trace), workload.trace_format))
    else:
        table = generate(workload, seed)
    table = select(table, workload)
    table = tell_max_tokens(table, workload.max_tokens)
    table = note_what_is_not_simulated(table, simulated)
    return dataclasses.replace(table, max_concurrency=workload.max_concurrency)
