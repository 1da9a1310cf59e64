"""Changes of requests before the run: order, selection, rate, `max_tokens`."""

from __future__ import annotations

import dataclasses

import numpy as np

from simulator.common.notes import Note
from simulator.errors import InputError
from simulator.scenario import traffic
from simulator.workload.requests import PER_REQUEST, Ints, RequestTable
from simulator.workload.tables import MAX_SECONDS, NS, UNSET


def in_order(table: RequestTable) -> RequestTable:
    """Return the table sorted by arrival, equal arrivals in file order, with a note if any was not in order."""
    arrival_ns = table.arrival_ns
    late = int(np.count_nonzero(arrival_ns < np.maximum.accumulate(arrival_ns)))
    if not late:
        return table
    table = _rows(table, np.argsort(arrival_ns, kind="stable"))
    facts = [f"{late} stood after a later one and were sorted"]
    equal = int(np.count_nonzero(np.diff(table.arrival_ns) == 0))
    if equal:
        facts.append(f"{equal} share the time of another, and keep the order of the file")
    text = f"of {len(table)} arrivals, {'; '.join(facts)}"
    return _noted(table, Note("arrivals_sorted", text))


def select(table: RequestTable, workload: traffic.Workload) -> RequestTable:
    """Return the part of a sorted table that the workload selects, with its arrivals scaled.

    The first arrival of a trace, or of a time window, is moved to 0; other synthetic workloads keep their clock.

    Raises:
        InputError: nothing is left, or the scaled arrivals span more than can be simulated.
    """
    if workload.trace is not None:
        table = _from_zero(table)
    if workload.time_window is not None:
        table = _from_zero(_window(table, *workload.time_window))
    if workload.limit is not None and workload.limit < len(table):
        table = _rows(table, np.arange(workload.limit))
    if workload.rate_scale != 1:
        table = dataclasses.replace(table, arrival_ns=_scaled(table.arrival_ns, workload.rate_scale))
    return table


def fill_max_tokens(table: RequestTable, default: int | None) -> RequestTable:
    """Return the table with `max_tokens` for every request: its own, else `default`, else its output length.

    The service stops at `max_tokens`: longer outputs are cut, with a note on their number.
    """
    limits = table.max_tokens
    fallback = table.output_tokens if default is None else np.broadcast_to(np.int64(default), len(table))
    unset = limits == UNSET
    limits = fallback if unset.all() else np.where(unset, fallback, limits)
    table = dataclasses.replace(table, max_tokens=limits)
    cut = table.output_tokens > limits
    requests = int(np.count_nonzero(cut))
    if not requests:
        return table
    tokens = int((table.output_tokens[cut] - limits[cut]).sum())
    text = f"max_tokens cuts {requests} of {len(table)} outputs short, by {tokens} tokens in all"
    table = dataclasses.replace(table, output_tokens=np.minimum(table.output_tokens, limits))
    return _noted(table, Note("output_cut", text))


def cut_at_context(table: RequestTable, max_model_len: int) -> RequestTable:
    """Return the table with outputs cut at the context limit; requests whose prompts fill it stay, to be refused."""
    room = max_model_len - table.prompt_tokens
    outputs = np.where(room > 0, np.minimum(table.output_tokens, room), table.output_tokens)
    requests = int(np.count_nonzero(outputs < table.output_tokens))
    if not requests:
        return table
    table = dataclasses.replace(table, output_tokens=outputs)
    text = f"the context limit of {max_model_len} tokens cuts {requests} of {len(table)} outputs short"
    return _noted(table, Note("output_cut_at_context", text))


def note_unused_columns(table: RequestTable, simulated: frozenset[str] = frozenset()) -> RequestTable:
    """Return the table with a note on columns, and one on shared prompts, that the simulation does not use.

    `simulated` has the names of the columns that it uses; `prefix_id` stands for all sharing of prompts.
    """
    unused = [name for name in table.extras if name not in simulated]
    if unused:
        names = ", ".join(name.replace("_ns", "_s") for name in unused)  # the names in the file
        text = f"columns of the workload that are not simulated yet: {names}"
        table = _noted(table, Note("columns_not_simulated", text))
    if "prefix_id" in simulated:
        return table
    if _repeats(table.prompt_id) or _repeats(table.prefix_id[table.prefix_tokens > 0]):
        text = (
            "prompts share prefixes, and the scheduler does not cache them: for an engine that does, TTFT and load are "
            "overstated"
        )
        table = _noted(table, Note("prefix_sharing_not_simulated", text))
    return table


def _repeats(ids: Ints) -> bool:
    named = np.sort(ids[ids >= 0])
    return bool((named[1:] == named[:-1]).any())


def _from_zero(table: RequestTable) -> RequestTable:
    return dataclasses.replace(table, arrival_ns=table.arrival_ns - table.arrival_ns[0])


def _window(table: RequestTable, start_ns: int, end_ns: int) -> RequestTable:
    first, last = np.searchsorted(table.arrival_ns, [start_ns, end_ns])
    if first == last:
        window = f"from {_seconds(start_ns)} to {_seconds(end_ns)}"
        latest = _seconds(int(table.arrival_ns[-1]))
        raise InputError(f"workload.time_window: no request arrives {window}; the last one is at {latest}")
    return _rows(table, np.arange(first, last))


def _seconds(ns: int) -> str:
    return f"{ns / NS:.10g} s"


def _scaled(arrival_ns: Ints, scale: float) -> Ints:
    if arrival_ns[-1] / scale > MAX_SECONDS * NS:
        raise InputError("workload.rate_scale: the arrivals would last more than a century; make it larger")
    return np.rint(arrival_ns / scale).astype(np.int64)


def _rows(table: RequestTable, rows: Ints) -> RequestTable:
    loop = table.closed_loop
    return dataclasses.replace(
        table,
        **{name: getattr(table, name)[rows] for name in PER_REQUEST},
        closed_loop=None if loop is None else loop._replace(think_ns=loop.think_ns[rows]),
        ids=None if table.ids is None else tuple(table.ids[row] for row in rows),
        extras={name: column[rows] for name, column in table.extras.items()},
    )


def _noted(table: RequestTable, note: Note) -> RequestTable:
    return dataclasses.replace(table, notes=(*table.notes, note))
