"""Order of requests and steps at equal times: whether a request that arrives when a step is formed came before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.engine.replay import ReplayRequest

Line = dict[str, Any]
_NUMBERS = ("sched_ns", "end_ns", "n_running", "n_waiting")


def with_ties(requests: Sequence[ReplayRequest], steps: Sequence[Line]) -> list[ReplayRequest]:
    """Return the requests, in order of arrival, with `behind_step` set where the record's counts tell it: the requests
    that run or wait after a step was formed, and those that had ended before, are all that had arrived.

    Requests with a `behind_step` of their own are unchanged; so are all, if a step lacks these counts.
    """
    if not all(type(line.get(key)) is int for line in steps for key in _NUMBERS):
        return list(requests)
    if not all(isinstance(line.get("finished"), list) for line in steps):
        return list(requests)
    arrived = _arrived(steps)
    return [
        replace(request, behind_step=under_way) if request.behind_step < 0 and there <= number else request
        for number, request in enumerate(requests)
        for there, under_way in [arrived.get(request.arrival_ns, (len(requests), -1))]
    ]


def _arrived(steps: Sequence[Line]) -> dict[int, tuple[int, int]]:
    """Return, by the time at which a step was formed (the last one, if several were), the number of requests that had
    arrived, and the oldest step that was under way then."""
    arrived: dict[int, tuple[int, int]] = {}
    ended = 0  # requests that ended before the previous step
    last = 0  # requests that ended with the previous step
    for number, line in enumerate(steps):
        over = not number or steps[number - 1]["end_ns"] <= line["sched_ns"]
        before = ended + last if over else ended
        arrived[line["sched_ns"]] = line["n_running"] + line["n_waiting"] + before, number if over else number - 1
        ended, last = ended + last, len(line["finished"])
    return arrived
