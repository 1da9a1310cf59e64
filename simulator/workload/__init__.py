"""Requests, read from a trace or drawn from distributions, then selected; always before the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from simulator.scenario import traffic
from simulator.workload.requests import Request, RequestTable
from simulator.workload.selection import fill_max_tokens, in_order, note_unused_columns, select

__all__ = ["Request", "RequestTable", "load_requests"]


def load_requests(
    workload: traffic.Workload, seed: int, find: Callable[[str], Path], simulated: frozenset[str] = frozenset()
) -> RequestTable:
    """Return the requests of `workload`. `find` returns the path of a trace by its name; `simulated` has the names of
    the columns that the deployment uses.

    In this order: arrivals are sorted (a stable sort, with a note), and counted from a trace's first one; requests are
    cut to the time window and to the limit; arrivals are scaled; `max_tokens` is filled in.

    Raises:
        InputError: the trace has an error, or no request is left, or there are more than can be simulated.
    """
    if workload.trace is not None:
        from simulator.workload.formats import read_trace

        table = in_order(read_trace(find(workload.trace), workload.trace_format))
    else:
        from simulator.workload.synthetic import generate

        table = generate(workload, seed)
    table = select(table, workload)
    table = fill_max_tokens(table, workload.max_tokens)
    table = note_unused_columns(table, simulated)
    return dataclasses.replace(table, max_concurrency=workload.max_concurrency)
