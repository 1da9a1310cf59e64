"""`simulator.load_trace` and `simulator.trace_stats`: reading traces and their statistics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.api.boundary import boundary
from simulator.study.traces import trace_frame, trace_statistics_of

if TYPE_CHECKING:
    import pandas as pd


@boundary
def load_trace(name: str | Path, trace_format: str = "auto") -> pd.DataFrame:
    """Return the requests of a trace file, or of a shipped trace, one row per request in order of arrival.

    Columns: `arrival_s`, `prompt_tokens`, `output_tokens`, `max_tokens`, `class_name`, and the further columns of the
    file.

    Raises:
        InputError: the file or the format is not known, or the file has a mistake in it.
    """
    return trace_frame(str(name), trace_format)


@boundary
def trace_stats(name: str | Path, trace_format: str = "auto") -> dict[str, Any]:
    """Return rate, burstiness and lengths of a trace, as `servesim trace stats --json` prints them.

    Raises:
        InputError: as `load_trace`.
    """
    return trace_statistics_of(str(name), trace_format)
