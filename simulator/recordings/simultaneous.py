"""Finds whether requests that arrive at the very moment at which a step is formed came before or after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.engine.replay import ReplayRequest

Line = dict[str, Any]
_NUMBERS = ("sched_ns", "end_ns", "n_running", "n_waiting")


def with_ties(requests: Sequence[ReplayRequest], steps: Sequence[Line]) -> list[ReplayRequest]:
    """The requests, in order of arrival, with the step that each came behind where the record's counts tell: what runs
    and waits after a step was formed, with what had ended before, are the requests that had arrived.

    Those that say it themselves are left as they are; so are all, if a step does not have these counts.
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
    """By the moment at which a step was formed, the last of several: how many requests had arrived, and the oldest step
    that was under way then."""
    arrived: dict[int, tuple[int, int]] = {}
    ended = 0  # requests, with the steps before the one that is looked at, less the last of these
    last = 0  # requests that ended with the last of these
    for number, line in enumerate(steps):
        over = not number or steps[number - 1]["end_ns"] <= line["sched_ns"]
        before = ended + last if over else ended
        arrived[line["sched_ns"]] = line["n_running"] + line["n_waiting"] + before, number if over else number - 1
        ended, last = ended + last, len(line["finished"])
    return arrived
