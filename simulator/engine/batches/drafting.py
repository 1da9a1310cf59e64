"""Speculative decoding in the explicit batch: the number of drafts, and of those that are accepted."""

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
    """A `Speculator` that draws the number of accepted drafts, one verification after the other."""

    def __init__(
        self, proposer: Proposer, law: AcceptanceLaw, counts: DraftCounts, cost: CostModel, batch: ExplicitBatch
    ) -> None:
        self._law = law
        self._rule = build_length(proposer, _step_time(cost, batch))
        self._counts = counts
        self._length = 0

    def length(self, running: int) -> tuple[int, int]:
        """Return the number of drafts of each sequence after the step that is formed now, and the drafter's passes."""
        drafts = self._length = self._rule.length(running)
        return drafts, self._counts.depth_of[drafts]

    def proposed(self, step: int, seq: TrackedSequence) -> int:
        """Return the number of drafts proposed, at the end of a synchronous step, for the sequence's next one."""
        if not self._length:
            return 0
        if seq.run is None:  # else the last proposal was not scheduled
            self._peek(seq)
            if self._rule.listens:
                self._rule.looked(seq.run is not None)
        return 0 if seq.run is None else self._length

    def accepted(self, step: int, seq: TrackedSequence, drafts: int) -> int:
        """Return the number of a sequence's scheduled drafts that the step accepts."""
        run = seq.run
        if run is None:
            run = self._peek(seq)
        seq.run = None
        counts = self._counts
        depth = counts.depth_of[drafts]
        if run == NOTHING:  # placeholders, without proposed drafts
            run = 0
        elif run > depth:
            run = depth
        counts.outcomes[drafts][run] += 1
        if self._rule.listens:
            self._rule.observe(depth, run)
        return run

    def _peek(self, seq: TrackedSequence) -> int:
        """Draw the run of the next verification and keep it in `seq.run`, which is None without drafts."""
        if seq.runs is None:
            seq.runs = self._law.runs(seq.index)
        run: int = next(seq.runs)
        seq.run = None if run == NOTHING else run
        return run


def _step_time(cost: CostModel, batch: ExplicitBatch) -> StepTime:
    """Return the `StepTime` of an engine core, for running sequences of the present mean length."""

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
