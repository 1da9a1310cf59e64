"""`simulator.load_trace` and `simulator.trace_stats`: traces, read and described."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.api.boundary import boundary
from simulator.study.traces import trace_frame, trace_statistics_of

if TYPE_CHECKING:
    import pandas as pd


@boundary
def load_trace(name: str | Path, trace_format: str = "auto") -> pd.DataFrame:
    """The requests of a trace, a file or a shipped one, one row each, in order of arrival: `arrival_s`,
    `prompt_tokens`, `output_tokens`, `max_tokens`, `class_name`, and the columns that the file has beyond these.

    Raises:
        InputError: there is no such file or format, or the file has a mistake in it.
    """
    return trace_frame(str(name), trace_format)


@boundary
def trace_stats(name: str | Path, trace_format: str = "auto") -> dict[str, Any]:
    """Rate, burstiness and lengths of a trace: what `servesim trace stats --json` prints of one.

    Raises:
        InputError: as `load_trace`.
    """
    return trace_statistics_of(str(name), trace_format)
