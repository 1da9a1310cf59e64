"""Trace formats: one reader for each, listed in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simulator.common.garbage import no_garbage_collection
from simulator.errors import InputError, did_you_mean
from simulator.workload.formats import azure, native
from simulator.workload.formats.cells import Columns, column_names, shown
from simulator.workload.formats.source import Source, open_source
from simulator.workload.requests import RequestTable

__all__ = ["FORMATS", "Format", "detect", "read_trace"]

AUTO = "auto"


class Format(NamedTuple):
    """A trace format. A file with any of its required columns counts as of this format, so that a misspelt column is
    reported."""

    description: str
    columns: Columns
    read: Callable[[Source], RequestTable]


FORMATS = {
    "azure": Format("Azure LLM inference trace (CSV)", azure.COLUMNS, azure.read),
    "native": Format("the native format (CSV or JSON lines)", native.COLUMNS, native.read),
}


def read_trace(path: Path, name: str = AUTO) -> RequestTable:
    """Read the requests of the trace at `path`, in file order, on the trace's clock; `max_tokens` may be `UNSET`.

    Raises:
        InputError: the file cannot be read, is of no known format (`auto`) or of several, or has an error.
    """
    if name != AUTO and name not in FORMATS:
        raise InputError(f"{name!r} is not a known trace format{did_you_mean(name, FORMATS)}")
    with open_source(path) as source, no_garbage_collection():
        return FORMATS[_detect(source) if name == AUTO else name].read(source)


def detect(path: Path) -> str:
    """Return the name of the format of the trace at `path`. Raises InputError as `read_trace` does."""
    with open_source(path) as source:
        return _detect(source)


def _detect(source: Source) -> str:
    names = column_names(source)
    fitting = [name for name, entry in FORMATS.items() if not set(entry.columns.required).isdisjoint(names)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        source.fail(f"could be of the formats {' and '.join(fitting)}; choose one with --trace-format")
    known = ", ".join(f"{name} ({','.join(entry.columns.required)})" for name, entry in FORMATS.items())
    found = shown(",".join(names))
    return source.fail(f"unknown header {found}; choose the format with --trace-format: {known}")
