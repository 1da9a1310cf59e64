"""Matching of the rows of a file: one measured with drafts, its baseline, and its acceptance length.

Rows belong together if they say the same of the run. What a row leaves open may be anything, so that a row that says
less, or more, is taken only if there is no doubt which value is meant.
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
    file does not say."""
    own = line.quantity("baseline_value")
    others = [other for other in lines if other.plain and other.metric.name == line.metric.name]
    return own or _value(line, others, (_SOURCE, _MODEL, _ENGINE, _CLIENTS), (*_SERVER, _DATASET))


def length_of(line: Line, lines: Sequence[Line]) -> tuple[float, bool] | None:
    """The acceptance length of the run of `line`, and whether it was measured on the same server; None if the file does
    not say. The server may be another one, since acceptance does not depend on it."""
    others = [other for other in lines if other.metric.name == "acceptance_length"]
    alike = (_SOURCE, _MODEL, _METHOD, _DRAFTS)
    same = _value(line, others, alike, (*_SERVER, _DATASET))
    if same is not None:
        return same, True
    other = _value(line, others, alike, (_DATASET,))
    return None if other is None else (other, False)


def _value(line: Line, others: Sequence[Line], alike: Sequence[_Key], near: Sequence[_Key]) -> float | None:
    """The value of those of `others` that agree with `line` in all that is `alike` and `near`, the middle one of
    several; else the only value of those that agree in what is `alike` and contradict nothing that is `near`."""
    found = [other for other in others if all(key(other) == key(line) for key in alike)]
    same = _values([other for other in found if all(key(other) == key(line) for key in near)])
    if same:
        return median(same)
    fitting = [other for other in found if all(key(other) in (key(line), "") or not key(line) for key in near)]
    values = set(_values(fitting))
    return values.pop() if len(values) == 1 else None


def _values(lines: Sequence[Line]) -> list[float]:
    """The values of those that have one."""
    values = []
    for line in lines:
        try:
            values.append(line.quantity("value"))
        except NotSimulatedError:
            continue
    return [value for value in values if value is not None]
