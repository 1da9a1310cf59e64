"""Speculative decoding while a replica runs: how many drafts its sequences get, and how many of them hold."""

from __future__ import annotations

from cost_models.shape import BatchShape, CostModel
from simulator.engine.batches.draft_counts import DraftCounts
from simulator.engine.batches.explicit import ExplicitBatch
from simulator.scenario.speculation import Proposer
from simulator.scheduling import TrackedSequence
from simulator.speculation import AcceptanceLaw, build_length
from simulator.speculation.length import StepTime
from simulator.speculation.runs import NOTHING


class Drafting:
    """Draws what becomes of drafts, one verification after the other; see `explicit_step.Speculator`."""

    def __init__(
        self, proposer: Proposer, law: AcceptanceLaw, counts: DraftCounts, cost: CostModel, batch: ExplicitBatch
    ) -> None:
        self._law = law
        self._rule = build_length(proposer, _step_time(cost, batch))
        self._counts = counts
        self._length = 0

    def length(self, running: int) -> tuple[int, int]:
        """Drafts that each sequence is to get after the step that is formed now, with so many running ones, and the
        passes of the drafter that they take."""
        drafts = self._length = self._rule.length(running)
        return drafts, self._counts.depth_of[drafts]

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """The number of drafts proposed, at the end of a synchronous step, for the sequence's next one."""
        if not self._length:
            return 0
        if seq.run is None:  # else what was proposed last was not scheduled
            self._peek(seq)
            self._rule.looked(seq.run is not None)
        return 0 if seq.run is None else self._length

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """The number of the scheduled drafts of a sequence that the step accepts."""
        run = seq.run
        if run is None:
            run = self._peek(seq)
        seq.run = None
        counts = self._counts
        depth = counts.depth_of[drafts]
        if run == NOTHING:  # placeholders that nothing was found for
            run = 0
        elif run > depth:
            run = depth
        counts.outcomes[drafts][run] += 1
        self._rule.observe(depth, run)
        return run

    def _peek(self, seq: TrackedSequence) -> int:
        """The run of the next verification; one of nothing to propose is used up when that is noticed."""
        if seq.runs is None:
            seq.runs = self._law.runs(seq.index)
        run: int = next(seq.runs)
        seq.run = None if run == NOTHING else run
        return run


def _step_time(cost: CostModel, batch: ExplicitBatch) -> StepTime:
    """Return the time of a replica's steps by running sequences, of the usual length, and drafts; see `StepTime`."""

    def step_time(running: int, drafts: int, share: float) -> float:
        keys = batch.known_tokens // max(batch.unfinished, 1) + 1
        window = running * min(keys, cost.window) if cost.window else 0
        verified = round(running * drafts * share)
        shape = BatchShape(
            running, running * keys + verified, window, (), 0, running, draft_tokens=verified, proposed=drafts
        )
        device_ns, host_ns, _ = cost.step_cost(shape)
        return max(device_ns, host_ns) if batch.depth == 2 else device_ns + host_ns

    return step_time
