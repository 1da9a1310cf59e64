"""A step as a line of a recording; see docs/recordings.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from simulator.engine.batches.explicit_step import ExplicitStep
from simulator.scheduling import TrackedSequence

Name = Callable[[int], Any]


def formed_line(
    step: ExplicitStep, name: Name, sched_ns: int, start_ns: int, kv_used: int, running: int, waiting: int
) -> dict[str, Any]:
    """What is known of a step once it is formed."""
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
        "kv_used": kv_used,
        "n_running": running,
        "n_waiting": waiting,
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
    line: dict[str, Any], step: ExplicitStep, name: Name, kv_used_end: int, hashed: int, proposes: bool
) -> dict[str, Any]:
    """The line of a step that has delivered its tokens."""
    line["emitted"] = {str(name(seq.index)): tokens for seq, tokens in step.emitted}
    line["finished"] = [name(seq.index) for seq in step.ending]
    line["kv_used_end"] = kv_used_end
    line["n_hashed"] = hashed
    if step.accepted:
        line["accepted"] = {str(name(seq.index)): [drafts, accepted] for seq, drafts, accepted in step.accepted}
    if proposes:
        line["proposed"] = {str(name(seq.index)): drafts for seq, drafts in step.proposed}
    return line
