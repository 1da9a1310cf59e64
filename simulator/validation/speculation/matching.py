"""Matching of the rows of a file: one measured with drafts, its baseline, and its acceptance length.

Rows belong together if their columns on the run agree. An empty column may stand for any value, so that rows with empty
columns are matched only if just one value fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from simulator.validation.cells import NotSimulatedError
from simulator.validation.speculation.lines import Line

_Key = Callable[[Line], str]


def _column(name: str) -> _Key:
    return lambda line: line.text(name).lower()


def _server(line: Line) -> str:
    return line.gpu.lower().removesuffix("(inferred)").strip()


_SOURCE, _MODEL, _ENGINE, _DATASET = (_column(name) for name in ("source", "model", "engine", "dataset"))
_METHOD, _DRAFTS, _CLIENTS = (_column(name) for name in ("draft_or_method", "k", "batch_or_concurrency"))
_SERVER: tuple[_Key, ...] = (_server, lambda line: str(line.gpus or ""), lambda line: str(line.version or ""))


def baseline_of(line: Line, lines: Sequence[Line]) -> float | None:
    """Return the measurement without speculation that corresponds to `line`, in the unit of the comparison; None if the
    file has none."""
    own = line.quantity("baseline_value")
    others = [other for other in lines if other.plain and other.metric.name == line.metric.name]
    return own or _value(line, others, (_SOURCE, _MODEL, _ENGINE, _CLIENTS), (*_SERVER, _DATASET))


def length_of(line: Line, lines: Sequence[Line]) -> tuple[float, bool] | None:
    """Return the acceptance length of the run of `line`, and whether it was measured on the same server; None if the
    file has none. The server may be another one, since acceptance does not depend on it."""
    others = [other for other in lines if other.metric.name == "acceptance_length"]
    alike = (_SOURCE, _MODEL, _METHOD, _DRAFTS)
    same = _value(line, others, alike, (*_SERVER, _DATASET))
    if same is not None:
        return same, True
    other = _value(line, others, alike, (_DATASET,))
    return None if other is None else (other, False)


def _value(line: Line, others: Sequence[Line], alike: Sequence[_Key], near: Sequence[_Key]) -> float | None:
    """Return the median value of those `others` that agree with `line` in all keys `alike` and `near`.

    If there are none, return the value of those that agree in all keys `alike` and have the same or an empty value in
    the keys `near`, if it is the same for all of them; else None.
    """
    found = [other for other in others if all(key(other) == key(line) for key in alike)]
    same = _values([other for other in found if all(key(other) == key(line) for key in near)])
    if same:
        return median(same)
    fitting = [other for other in found if all(key(other) in (key(line), "") or not key(line) for key in near)]
    values = set(_values(fitting))
    return values.pop() if len(values) == 1 else None


def _values(lines: Sequence[Line]) -> list[float]:
    """Return the values of those lines that have one."""
    values = []
    for line in lines:
        try:
            values.append(line.quantity("value"))
        except NotSimulatedError:
            continue
    return [value for value in values if value is not None]
