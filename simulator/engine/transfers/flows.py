"""Flows over links, and streams of flows that have the same rate. Bytes are counted in units of 2^-40 x 10^-9 byte."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.network import Demand

SCALE = 40


BYTE = 10**9 << SCALE


#: A smaller rest counts as 0, so that a rate that is rounded down does not add a nanosecond to a transfer.
CRUMB = BYTE // 10**6
#: The same in units of 10^-9 byte.
_CRUMB = CRUMB >> SCALE


@dataclass(eq=False)
class Flow:
    """A transfer: its parameters, and the times in ns at which its first byte could flow and it ended (-1: not yet).

    It is being set up until `begins_ns`. It ends at `lone_end_ns` if its links have no other flows, and else later.
    """

    number: int
    route: tuple[int, ...]
    size_bytes: int
    cap: int | None
    done: Callable[[], None]
    begins_ns: int
    lone_end_ns: int = field(default=0, init=False)
    began_ns: int = field(default=-1, init=False)
    ended_ns: int = field(default=-1, init=False)
    aborted: bool = field(default=False, init=False)
    left: int = field(default=0, init=False)  # units that it lacked when it joined its stream, or left it
    target: int = field(default=0, init=False)  # units that its stream will have given when the flow ends
    stream: Stream | None = field(default=None, init=False)


@dataclass(slots=True, eq=False)
class Stream(Demand):
    """Flows with the same rate; each has got `given` units by `since_ns`, counted from the start of the stream."""

    key: tuple[object, ...] = ()
    number: int = 0
    rate: int = 0
    given: int = 0
    since_ns: int = 0
    end_ns: float = math.inf  # end of its first flow; infinity if not computed yet
    queue: list[tuple[int, int, Flow]] = field(default_factory=list)  # a heap of (target, number, flow)


def first_end(stream: Stream) -> float:
    """Return the end of the first flow of a stream at its present rate, in ns, rounded up; infinity without a rate."""
    queue = stream.queue
    while queue[0][2].stream is not stream:  # aborted, or moved to another stream
        heapq.heappop(queue)
    if not stream.rate:
        return math.inf
    lacking = queue[0][0] - stream.given - CRUMB
    return stream.since_ns + max(0, -(-lacking // stream.rate))


def lone_end(flow: Flow, bytes_per_s: int) -> int:
    """Return the end of a flow without others on its links, the slowest of which has that rate; in ns, rounded up."""
    rate = bytes_per_s if flow.cap is None else min(bytes_per_s, flow.cap)
    if not flow.size_bytes:
        return flow.begins_ns
    return flow.begins_ns - (_CRUMB - flow.size_bytes * 10**9) // rate
