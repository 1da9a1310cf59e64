"""Replays of recordings of a scheduler, with a comparison of every field of every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.engine.replay import Replay, ReplayInputs
from simulator.recordings.reader import Line, Recording, read_recording
from simulator.scheduling import TrackedSequence

_ABSENT = "-"
_SHOWN = 8
#: Mappings whose order is compared, too: that of the scheduler.
_ORDERED = ("hits", "emitted")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a replay: the number of equal steps before the first difference, and that difference, None if there is
    none."""

    name: str
    steps: int
    divergence: str | None

    @property
    def identical(self) -> bool:
        """Whether all steps are equal."""
        return self.divergence is None

    def __str__(self) -> str:
        if self.divergence is None:
            return f"{self.name}: identical, {self.steps} steps"
        return f"{self.name}: diverges after {self.steps} equal steps\n{self.divergence}"


def check_scheduler(folder: Path, *, checks: bool = False) -> Verdict:
    """Replay the recording in `folder` and compare its steps; with `checks`, also verify conservation laws at each.

    Raises:
        InputError: the recording is not readable.
    """
    recording = read_recording(folder)
    replay = replay_of(recording, checks)
    lines = replay.lines()
    for number, recorded in enumerate(recording.steps):
        replayed = next(lines, None)
        if replayed is None:
            text = f"  the replay ends here, the record continues: {_clipped(recorded)}"
            return Verdict(recording.name, number, f"{text}\n{_state(replay)}")
        if not _equal(recorded, replayed):
            return Verdict(recording.name, number, _difference(recording, number, replayed, replay))
    surplus = None if recording.stopped else next(lines, None)
    if surplus is not None:
        text = f"  the record ends here, the replay continues: {_clipped(surplus)}"
        return Verdict(recording.name, len(recording.steps), f"{text}\n{_state(replay)}")
    return Verdict(recording.name, len(recording.steps), None)


def replay_of(recording: Recording, checks: bool = False) -> Replay:
    """Return a replay of a recording with the recording's own time law, not yet started."""
    law, drafts = recording.time_law(), recording.speculator()
    return Replay(recording.settings, ReplayInputs(recording.requests, recording.contents, law, drafts), checks)


def _equal(recorded: Line, replayed: Line) -> bool:
    if recorded != replayed:
        return False
    return all(list(recorded[key]) == list(replayed[key]) for key in _ORDERED)


def _difference(recording: Recording, number: int, replayed: Line, replay: Replay) -> str:
    recorded = recording.steps[number]
    rows = []
    for key in dict.fromkeys((*recorded, *replayed)):
        ours, theirs = replayed.get(key, _ABSENT), recorded.get(key, _ABSENT)
        if ours != theirs or (key in _ORDERED and list(ours) != list(theirs)):
            rows.append(f"  {key}: recorded {_clipped(theirs)}, replayed {_clipped(ours)}")
    if number:
        before = recording.steps[number - 1]
        rows.append(f"  step before (equal): {_clipped(before)}")
    return "\n".join([*rows, _state(replay)])


def _state(replay: Replay) -> str:
    batch, pool = replay.batch, replay.pool
    return (
        f"  replayed state now: {pool.free} of {pool.blocks} blocks free; "
        f"running {_sequences(replay, batch.order)}; waiting {_sequences(replay, batch.waiting)}"
    )


def _sequences(replay: Replay, sequences: Iterable[TrackedSequence]) -> str:
    listed = list(sequences)
    shown = [
        f"{replay.name(seq.index)} ({seq.computed} of {seq.known} computed, {seq.blocks} blocks)"
        for seq in listed[:_SHOWN]
    ]
    more = [f"and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    return f"{len(listed)}: {', '.join([*shown, *more])}" if listed else "none"


def _clipped(value: Any, width: int = 600) -> str:
    text = str(value)
    return text if len(text) <= width else f"{text[:width]}..."
