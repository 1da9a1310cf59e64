"""A step as a line of a recording, in the format of docs/recordings.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from simulator.engine.batches.explicit_step import ExplicitStep
from simulator.memory import PrefixPool
from simulator.scheduling import TrackedSequence

Name = Callable[[int], Any]


class CoreState(NamedTuple):
    """State of an engine core between steps: KV blocks in use, cached contents, running and waiting sequences."""

    kv_used: int
    hashed: int
    running: int
    waiting: int

    @classmethod
    def of(cls, batch: Any) -> CoreState:
        """Return the state of a `Batch` and its pool now."""
        pool = batch.pool
        hashed = pool.hashed if isinstance(pool, PrefixPool) else 0
        return cls(pool.blocks - pool.free, hashed, batch.running, len(batch.waiting))


def formed_line(step: ExplicitStep, name: Name, sched_ns: int, start_ns: int, state: CoreState) -> dict[str, Any]:
    """Return the line of a step that has just been formed."""
    plan = step.plan
    admitted = cast("Sequence[TrackedSequence]", plan.admitted)
    line = {
        "step": step.index,
        "sched_ns": sched_ns,
        "t_ns": start_ns,
        "dur_ns": step.end_ns - start_ns,
        "end_ns": step.end_ns,
        "total": step.total,
        "sched": [[name(entry.seq.index), entry.tokens, entry.computed] for entry in step.entries],
        "new": [name(seq.index) for seq in admitted if not seq.preemptions],
        "resumed": [name(seq.index) for seq in admitted if seq.preemptions],
        "preempted": [name(seq.index) for seq in plan.preempted],
        "hits": {str(name(seq.index)): seq.cached for seq in admitted},
        "kv_used": state.kv_used,
        "n_running": state.running,
        "n_waiting": state.waiting,
    }
    drafts = {str(name(entry.seq.index)): entry.drafts for entry in step.entries if entry.drafts}
    if drafts:
        line["drafts"] = drafts
        padded = {seq.index for seq in admitted}
        line["draft_pad"] = [
            name(entry.seq.index) for entry in step.entries if entry.drafts and entry.seq.index in padded
        ]
    return line


def complete_line(
    line: dict[str, Any], step: ExplicitStep, name: Name, state: CoreState, proposes: bool
) -> dict[str, Any]:
    """Complete and return the line of a step that has delivered its tokens."""
    line["emitted"] = {str(name(seq.index)): tokens for seq, tokens in step.emitted}
    line["finished"] = [name(seq.index) for seq in step.ending]
    line["kv_used_end"] = state.kv_used
    line["n_hashed"] = state.hashed
    if step.accepted:
        line["accepted"] = {str(name(seq.index)): [drafts, accepted] for seq, drafts, accepted in step.accepted}
    if proposes:
        line["proposed"] = {str(name(seq.index)): drafts for seq, drafts in step.proposed}
    return line
