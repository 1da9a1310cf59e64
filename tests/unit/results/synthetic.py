"""Records made without the engine: by a small loop of continuous batching, or out of the times of a single server."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import (
    DraftColumns,
    DraftPositions,
    OffloadColumns,
    PreemptionColumns,
    Refusal,
    ReplicaColumns,
    ReplicaState,
    RequestColumns,
    SegmentColumns,
    Status,
    StepColumns,
    TransferColumns,
)
from simulator.results.record import PoolFacts, RunRecord
from simulator.scenario import Scenario, parse_scenario

MS = 10**6
SECOND = 10**9
NEVER = np.zeros(0, np.int64)  # paused


def always_up(replicas: int) -> ReplicaColumns:
    """Return the states of replicas that are up for the whole run."""
    return ReplicaColumns(np.arange(replicas), np.full(replicas, ReplicaState.UP), np.zeros(replicas, np.int64))


@dataclass
class Loop:
    """Return the record of one replica. Every running request gets a token in each step; the newest is preempted before
    the steps `preempt_at`.

    `pauses`: in a step with a prompt, decodes get no token. With `accepts`, each decode has `drafts` drafts, for which
    a step takes `draft_ns` longer; `accepts` are the numbers of accepted ones, in turn.
    """

    slots: int = 8
    step_ns: int = 10 * MS
    token_ns: int = 1000
    kv_blocks: int = 10_000
    block_size: int = 16
    preempt_at: frozenset[int] = frozenset()
    pauses: bool = False
    drafts: int = 0
    accepts: tuple[int, ...] = ()
    draft_ns: int = MS
    paused: list[int] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # of each verified sequence

    def run(self, indices: Sequence[int], arrival: Any, prompt: Any, output: Any, out: dict[str, Any]) -> None:
        """Serve the requests `indices`; write their times and segments to `out`."""
        coming, waiting, running = deque(indices), deque[int](), dict[int, int]()
        now, open_segment, last_token = 0, dict[int, int](), dict[int, int]()
        events: dict[int, list[int]] = {}
        while coming or waiting or running:
            if not waiting and not running:
                now = max(now, int(arrival[coming[0]]))
            while coming and arrival[coming[0]] <= now:
                waiting.append(coming.popleft())
            step = len(self.rows)
            if step in self.preempt_at and len(running) > 1:
                victim = next(reversed(running))
                out["preemptions"][victim] += 1
                out["lost"].append([victim, now, -1])
                out["recomputed_tokens"][victim] += prompt[victim] + out["emitted_tokens"][victim]
                self._close(victim, open_segment, last_token[victim], events, out)
                del running[victim]
                waiting.appendleft(victim)
            prefill = 0
            while waiting and len(running) < self.slots and step not in self.preempt_at:
                index = waiting.popleft()
                prefill += int(prompt[index] + out["emitted_tokens"][index])
                running[index] = step
                open_segment[index], events[index] = step, []
                if out["scheduled_ns"][index] < 0:
                    out["scheduled_ns"][index] = now
                for lost in out["lost"]:
                    if lost[0] == index and lost[2] < 0:
                        lost[2] = now
            pauses = self.pauses and prefill > 0
            if pauses:
                self.paused.append(step)
            decodes = 0 if pauses else sum(first < step for first in running.values())
            proposing = self.draft_ns * (self.drafts > 0)
            end = now + self.step_ns + proposing + self.token_ns * (prefill + decodes * (1 + self.drafts))
            used = sum(-(-int(prompt[i] + out["emitted_tokens"][i] + 1) // self.block_size) for i in running)
            self.rows.append((now, now, end, decodes, prefill, len(running), len(waiting), used))
            for index in list(running):
                if pauses and running[index] < step:
                    continue
                last_token[index] = step
                tokens = 1 if running[index] == step else 1 + self._accepted(index, step)
                events[index].append(min(tokens, int(output[index] - out["emitted_tokens"][index])))
                out["emitted_tokens"][index] += events[index][-1]
                if out["first_token_ns"][index] < 0:
                    out["first_token_ns"][index] = end
                if out["emitted_tokens"][index] == output[index]:
                    out["finish_ns"][index] = end
                    self._close(index, open_segment, step, events, out)
                    del running[index]
            now = end

    def _accepted(self, index: int, step: int) -> int:
        if not self.drafts:
            return 0
        self.accepted.append(self.accepts[(index + step) % len(self.accepts)])
        return self.accepted[-1]

    @staticmethod
    def _close(
        index: int, open_segment: dict[int, int], last: int, events: dict[int, list[int]], out: dict[str, Any]
    ) -> None:
        first, brought = open_segment.pop(index), events.pop(index)
        if first <= last:
            out["segments"].append((index, first, last))
            out["events"] += brought


def replay(
    arrival_ns: Sequence[int] | NDArray[np.integer],
    prompt_tokens: Sequence[int] | NDArray[np.integer],
    output_tokens: Sequence[int] | NDArray[np.integer],
    replicas: int = 1,
    client_ns: Sequence[int] | None = None,
    class_id: Sequence[int] | None = None,
    class_names: tuple[str, ...] = ("default",),
    **loop: Any,
) -> RunRecord:
    """Return a run of `Loop` replicas, requests to them in turn; `loop` goes to `Loop`."""
    count = len(arrival_ns)
    arrival = np.asarray(arrival_ns, np.int64)
    moments = ("scheduled_ns", "first_token_ns", "finish_ns")
    out: dict[str, Any] = {name: np.full(count, -1, np.int64) for name in moments}
    out |= {name: np.zeros(count, np.int64) for name in ("emitted_tokens", "preemptions", "recomputed_tokens")}
    out |= {name: np.zeros(count, np.int64) for name in ("queried_tokens", "cached_tokens", "recovered_tokens")}
    out["segments"], out["lost"], out["events"] = [], [], []
    fleet = [Loop(**loop) for _ in range(replicas)]
    for replica, one in enumerate(fleet):
        one.run(range(replica, count, replicas), arrival, prompt_tokens, output_tokens, out)
    segments = np.array(out.pop("segments"), np.int64).reshape(-1, 3)
    lost = np.array(out.pop("lost"), np.int64).reshape(-1, 3)
    events = np.array(out.pop("events"), np.uint16)
    columns = np.array([(*row, 0) for one in fleet for row in one.rows], np.int64).reshape(-1, 9).T
    offsets = np.concatenate([[0], np.cumsum([len(one.rows) for one in fleet])])
    paused = [offset + row for one, offset in zip(fleet, offsets[:-1], strict=True) for row in one.paused]
    requests = RequestColumns(
        client_ns=arrival if client_ns is None else np.asarray(client_ns, np.int64),
        arrival_ns=arrival,
        prompt_tokens=np.asarray(prompt_tokens, np.int32),
        output_tokens=np.asarray(output_tokens, np.int32),
        class_id=np.zeros(count, np.int32) if class_id is None else np.asarray(class_id, np.int32),
        replica=np.arange(count, dtype=np.int32) % replicas,
        status=np.full(count, Status.COMPLETED, np.int8),
        refusal=np.zeros(count, np.int8),
        **out,
    )
    return RunRecord(
        requests=requests,
        segments=SegmentColumns(segments[:, 0], segments[:, 0] % replicas, segments[:, 1], segments[:, 2]),
        preemptions=PreemptionColumns(*lost.T),
        steps=StepColumns(offsets, *columns, np.array(paused, np.int64)),
        event_tokens=events if fleet[0].drafts else events[:0],
        **drafted(fleet, offsets.tolist()),
        class_names=class_names,
        replica_states=always_up(replicas),
        transfers=no_transfers(),
        offload=no_offload(),
        tiers=(),
        pools=(PoolFacts("main", "both", 0, replicas, replicas, replicas, fleet[0].kv_blocks, fleet[0].block_size),),
        start_ns=int(arrival.min()),
        end_ns=int(out["finish_ns"].max()),
        complete=True,
    )


def drafted(fleet: Sequence[Loop] = (), offsets: Sequence[int] = ()) -> dict[str, Any]:
    """Return the columns of drafts, empty without drafts."""
    steps = [
        (offset + number, one.drafts * row[3], one.draft_ns)
        for one, offset in zip(fleet, offsets, strict=False)
        for number, row in enumerate(one.rows)
        if one.drafts
    ]
    positions = [
        (
            *(replica, depth, len(one.accepted), len(one.accepted)),
            *(sum(count >= least for count in one.accepted) for least in (depth, depth + 1)),
        )
        for replica, one in enumerate(fleet)
        for depth in range(one.drafts)
    ]
    return {
        "drafts": DraftColumns(*np.array(steps, np.int64).reshape(-1, 3).T),
        "draft_positions": DraftPositions(*np.array(positions, np.int64).reshape(-1, 6).T),
    }


def no_transfers() -> TransferColumns:
    """Return the columns of transfers without rows."""
    return TransferColumns(*[np.zeros(0, np.int64) for _ in fields(TransferColumns)])


def no_offload() -> OffloadColumns:
    """Return the columns of loads without rows."""
    return OffloadColumns(*[np.zeros(0, np.int64) for _ in fields(OffloadColumns)])


def single_server(arrival_ns: Any, start_ns: Any, end_ns: Any) -> RunRecord:
    """Return requests of one token, each alone in one step, in order."""
    arrival, start, end = (np.asarray(times, np.int64) for times in (arrival_ns, start_ns, end_ns))
    count = len(arrival)
    zeros, ones, index = np.zeros(count, np.int64), np.ones(count, np.int64), np.arange(count)
    waiting = np.maximum(np.searchsorted(arrival, start, "right") - index - 1, 0)
    requests = RequestColumns(
        client_ns=arrival,
        arrival_ns=arrival,
        scheduled_ns=start,
        first_token_ns=end,
        finish_ns=end,
        prompt_tokens=100 * ones,
        output_tokens=ones,
        emitted_tokens=ones,
        class_id=zeros,
        replica=zeros,
        status=Status.COMPLETED * ones,
        refusal=zeros,
        preemptions=zeros,
        recomputed_tokens=zeros,
        queried_tokens=zeros,
        cached_tokens=zeros,
        recovered_tokens=zeros,
    )
    return RunRecord(
        requests=requests,
        segments=SegmentColumns(index, zeros, index, index),
        preemptions=PreemptionColumns(zeros[:0], zeros[:0], zeros[:0]),
        steps=StepColumns(
            np.array([0, count]), start, start, end, zeros, 100 * ones, ones, waiting, ones, zeros, NEVER
        ),
        class_names=("default",),
        event_tokens=NEVER,
        **drafted(),
        transfers=no_transfers(),
        offload=no_offload(),
        tiers=(),
        pools=(PoolFacts("main", "both", 0, 1, 1, 1, 10, 128),),
        replica_states=always_up(1),
        start_ns=int(arrival[0]),
        end_ns=int(end.max()),
        complete=True,
    )


def refused() -> RunRecord:
    """Return the record of one refused request, without steps and tokens."""
    record = replay([5], [1], [1])
    nothing = np.zeros(0, np.int64)
    never = {name: np.array([-1]) for name in ("scheduled_ns", "first_token_ns", "finish_ns")}
    state = {"emitted_tokens": 0, "status": Status.REJECTED, "refusal": Refusal.KV_POOL}
    columns = {field.name: nothing for field in fields(StepColumns)}
    return replace(
        record,
        requests=replace(record.requests, **never, **{name: np.array([value]) for name, value in state.items()}),
        segments=SegmentColumns(nothing, nothing, nothing, nothing),
        steps=StepColumns(**columns | {"offsets": np.array([0, 0])}),
        end_ns=record.start_ns,
    )


def queue_record(rng: np.random.Generator, requests: int, rho: float, servers: int = 1, cv: float = 1.0) -> RunRecord:
    """Return the record of Poisson arrivals at `rho` times the capacity of FCFS servers, which start empty.

    Service times have mean 1 s / `servers` a server and coefficient of variation `cv` (gamma). Steps are those of one
    server: with several, only the moments of requests mean something.
    """
    arrival = np.cumsum(rng.exponential(1 / rho, requests))
    service = rng.gamma(1 / cv**2, cv**2, requests) * servers if cv else np.full(requests, float(servers))
    free, start = [0.0] * servers, np.empty(requests)
    for index, (at, work) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
        start[index] = max(at, heapq.heappop(free))
        heapq.heappush(free, start[index] + work)
    arrival_ns, start_ns, end_ns = (np.round(times * SECOND) for times in (arrival, start, start + service))
    return single_server(arrival_ns, start_ns, end_ns)


def scenario(*overrides: str) -> Scenario:
    """Return a small scenario with the name, pool, SLO, price and run options for results."""
    return parse_scenario(_SCENARIO, overrides=overrides)


_SCENARIO = """
name: synthetic
model: llama-3.1-8b
workload:
  arrivals: {process: poisson, rate: 1}
  requests: 1
  prompt_tokens: 100
  output_tokens: 10
deployment:
  pools: {main: {gpu: h100-sxm, scheduler: {version: none, max_num_seqs: 8}}}
seed: 7
"""
