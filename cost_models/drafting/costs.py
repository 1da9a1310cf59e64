"""Speculative decoding: the cost of a step in which the target verifies drafts and a proposer makes the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cost_models.shape import BatchShape, CostModel, Ints, LockstepCost, StepCost, costs_one_by_one

_new_tuple = tuple.__new__


class Proposer(Protocol):
    """Time of a proposer, in whole ns: from the end of the target's part of a step until the next step's drafts are
    known."""

    @property
    def outside(self) -> Sequence[str]:
        """The parts of the proposer that were not measured, as texts for a warning; see `coverage`."""

    def draft_ns(self, shape: BatchShape) -> int:
        """Return the time of proposing after the step `shape`, in ns. It is monotone in the shape.

        If nothing is proposed, or no sequence has sampled, it is the time for prompts alone, whose KV a drafter with KV
        computes in any case.
        """

    def lockstep_ns(self, shapes: Sequence[BatchShape]) -> int:
        """Return the time of proposing after a step of all data-parallel ranks, in ns; the shapes of idle ranks are
        empty."""

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time on hardware of these peaks, in ns."""


@runtime_checkable
class _Runs(Protocol):
    """A target with array operations for several steps of the same numbers, as `Roofline` has."""

    def decodes_run_ns(self, decodes: int, drafts: int, context: Ints, in_window: Ints, rows: int) -> Ints: ...


@runtime_checkable
class _DraftRuns(Protocol):
    """A proposer with array operations for several steps of the same numbers, as `ModelProposer` has."""

    def draft_run_ns(self, decodes: int, drafts: int, proposed: int, keys: Ints) -> Ints: ...


class TimedProposer(NamedTuple):
    """A proposer with a given time: each pass takes `pass_ns` for any work, prompts take nothing.

    With `one_pass`, all drafts come from one pass.
    """

    pass_ns: int
    one_pass: bool = False
    outside: Sequence[str] = ()

    def draft_ns(self, shape: BatchShape) -> int:
        """Return the time of proposing after the step `shape`, in ns."""
        if not shape.sampled:
            return 0
        return self.pass_ns * (min(shape.proposed, 1) if self.one_pass else shape.proposed)

    def lockstep_ns(self, shapes: Sequence[BatchShape]) -> int:
        """Return the time of proposing after a step of all data-parallel ranks, in ns."""
        return max((self.draft_ns(shape) for shape in shapes), default=0)

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of proposing on this hardware, in ns: the given time itself."""
        return self.draft_ns(shape)


class LookupProposer(NamedTuple):
    """n-gram (prompt lookup): the CPU searches the text of each sequence that has sampled, in `sequence_ns` each.

    The search needs the sampled tokens, and the next step needs its result: in vLLM's model runner
    (`propose_draft_token_ids`) it runs between the two steps under any scheduling. It therefore counts as time of the
    step, and is never hidden. Sequences without a match take the same time.
    """

    sequence_ns: int
    outside: Sequence[str] = ()

    def draft_ns(self, shape: BatchShape) -> int:
        """Return the time of proposing after the step `shape`, in ns."""
        return self.sequence_ns * shape.sampled if shape.proposed else 0

    def lockstep_ns(self, shapes: Sequence[BatchShape]) -> int:
        """Return the time of proposing after a step of all data-parallel ranks, in ns."""
        return max((self.draft_ns(shape) for shape in shapes), default=0)

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of proposing on this hardware, in ns: 0, since the GPU does nothing."""
        return 0


class SpeculativeCost:
    """A target that verifies drafts, with the proposer of the next ones.

    Usually drafts are made after the target's part of a step. If `overlapped`, they are made while the target verifies
    the previous ones (as in PEARL, arXiv 2408.11850): a step takes the longer of both. This is for proposers that do
    not use the target's GPUs: two models on one GPU share its bandwidth, and together take longer than either.

    In both cases a step that verifies or proposes takes `step_ns` more, a part of `StepCost.draft_ns`: rejection
    sampling, and preparing the proposer's inputs from the accepted tokens.
    """

    __slots__ = ("_overlapped", "_step_ns", "proposer", "target", "window")

    def __init__(self, target: CostModel, proposer: Proposer, overlapped: bool = False, step_ns: int = 0) -> None:
        self.target = target
        self.proposer = proposer
        self.window = target.window
        self._overlapped = overlapped
        self._step_ns = step_ns

    def step_cost(self, shape: BatchShape) -> StepCost:
        """Return the times of the step `shape`."""
        device_ns, host_ns, _ = self.target.step_cost(shape)
        draft_ns = self.proposer.draft_ns(shape)
        _, _, _, _, _, sampled, drafts, proposed = shape
        if self._overlapped:
            draft_ns = self._added(device_ns, draft_ns, _drafts(shape))
        elif drafts or (proposed and sampled):  # the same without the time of two calls
            draft_ns += self._step_ns
        return _new_tuple(StepCost, (device_ns + draft_ns, host_ns, draft_ns))

    def lockstep_cost(self, shapes: Sequence[BatchShape]) -> StepCost:
        """Return the times of a common step of all ranks; `shapes` has the shape of each.

        Raises TypeError if the target's cost model has no `lockstep_cost`.
        """
        device_ns, host_ns, _ = _in_lockstep(self.target).lockstep_cost(shapes)
        drafting = any(_drafts(shape) for shape in shapes)
        draft_ns = self._added(device_ns, self.proposer.lockstep_ns(shapes), drafting)
        return StepCost(device_ns + draft_ns, host_ns, draft_ns)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the device time of each of k pure decode steps, in ns, shape (k,); `shape` is the first.

        Raises ValueError for chunks.
        """
        if not _drafts(shape):
            return self.target.decode_run(shape, k)
        if shape.chunks:
            raise ValueError(f"expected a pure decode step, found {len(shape.chunks)} prefill chunks")
        contexts = (shape.decode_context + step * shape.decodes for step in range(k))
        steps = [self.step_cost(shape._replace(decode_context=context)).device_ns for context in contexts]
        return np.array(steps, np.int64)

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps, in ns; all arrays are (n,).

        The steps neither verify nor propose drafts: their times are the target's.
        """
        return self.target.decode_costs(decodes, context, window_context)

    def drafted_costs(
        self, decodes: Ints, context: Ints, window_context: Ints, draft_tokens: Ints, proposed: Ints
    ) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps with drafts; as in `DraftedCosts`."""
        target, proposer = self.target, self.proposer
        if not (isinstance(target, _Runs) and isinstance(proposer, _DraftRuns)):
            return costs_one_by_one(self, decodes, context, window_context, draft_tokens, proposed)
        device_ns, host_ns = target.decode_costs(decodes, context, window_context)
        kinds, kind = np.unique(np.stack((decodes, draft_tokens, proposed)), axis=1, return_inverse=True)
        order = np.argsort(kind, kind="stable")
        ends = np.searchsorted(kind[order], np.arange(kinds.shape[1]), "right").tolist()
        for begin, end, (count, drafts, passes) in zip([0, *ends[:-1]], ends, kinds.T.tolist(), strict=True):
            rows = order[begin:end]
            alone_ns = target.decodes_run_ns(count, drafts, context[rows], window_context[rows], count + drafts)
            draft_ns = proposer.draft_run_ns(count, drafts, passes, context[rows])
            if self._overlapped:
                draft_ns = np.maximum(0, draft_ns - alone_ns)
            device_ns[rows] = alone_ns + draft_ns + (self._step_ns if drafts or passes else 0)
        return device_ns, host_ns

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """Return the device time by operator of the target, with the time that proposing adds."""
        return self.target.breakdown(shape) | {"proposing": self.step_cost(shape).draft_ns}

    def bound_ns(self, shape: BatchShape) -> int:
        """Return the least time of the step, in ns; see `Roofline`. Raises TypeError if the target has no bound."""
        target: Any = self.target
        if not hasattr(target, "bound_ns"):
            raise TypeError(f"{type(target).__name__} has no physical bound")
        verifying, proposing = int(target.bound_ns(shape)), self.proposer.bound_ns(shape)
        return max(verifying, proposing) if self._overlapped else verifying + proposing

    def _added(self, device_ns: int, draft_ns: int, drafting: bool) -> int:
        """Return the time that drafts add to a step of `device_ns`; `drafting`: the step verifies or proposes some."""
        if self._overlapped:
            draft_ns = max(0, draft_ns - device_ns)
        return draft_ns + self._step_ns if drafting else draft_ns


def _drafts(shape: BatchShape) -> bool:
    """Return whether a step verifies drafts, or proposes some for sequences that have sampled."""
    _, _, _, _, _, sampled, drafts, proposed = shape
    return drafts > 0 or (proposed > 0 and sampled > 0)


def _in_lockstep(target: CostModel) -> LockstepCost:
    if not hasattr(target, "lockstep_cost"):
        raise TypeError(f"{type(target).__name__} is not of ranks that step together")
    return target  # type: ignore[return-value]
