"""The interface between schedulers and cost models: the work of a step, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


class BatchShape(NamedTuple):
    """The work of one step, as the totals on which its cost depends.

    A decode is a sequence that computes one token; a chunk computes `tokens` prompt tokens of one sequence after
    `context` tokens that were computed earlier. Contexts are counted per sequence and layer: a kernel's bytes follow
    from the model.
    """

    decodes: int = 0
    #: Keys to which the decodes attend, the new token included, summed over the decodes: in layers with full attention.
    decode_context: int = 0
    #: The same in layers with a sliding window: each sequence counts at most the window. 0 if the model has none.
    decode_window_context: int = 0
    #: (tokens, context) of each prefill chunk.
    chunks: tuple[tuple[int, int], ...] = ()
    #: Requests that are in a step for the first time.
    new_requests: int = 0
    #: Sequences that sample a token at the end of the step.
    sampled: int = 0
    #: Draft tokens to verify, beyond one token a decode.
    draft_tokens: int = 0
    #: Drafts proposed after the step for each sequence that samples, one pass of the drafter for each.
    proposed: int = 0

    @property
    def tokens(self) -> int:
        """Scheduled tokens: decodes, drafts and prefill."""
        return self.decodes + self.draft_tokens + sum(tokens for tokens, _ in self.chunks)


class StepCost(NamedTuple):
    """Time of one step: of the device, and of the CPU that prepares it (hidden with asynchronous scheduling).

    `draft_ns` is the part of the device's time that speculation adds to the target's own step: proposing drafts, and
    rejection sampling.
    """

    device_ns: int
    host_ns: int
    draft_ns: int = 0


class CostModel(Protocol):
    """Cost of a step. It is monotone in tokens and context, and never below the physical bound."""

    @property
    def window(self) -> int:
        """The sliding window, to which `decode_window_context` is limited; 0 if the model has none."""

    def step_cost(self, shape: BatchShape) -> StepCost:
        """Return the time of the step `shape`, in at most 2 us of CPU."""

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the device time of each of k successive pure decode steps, in ns, shape (k,); `shape` is the first.

        The times equal k calls of `step_cost`, bit for bit, with `decode_context` growing by `decodes` a step and a
        constant window context. The host time of such steps must not change.
        """

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps, in ns; all arrays are (n,).

        Each step has 1 decode or more, and samples a token for each. The times equal those of `step_cost`, bit for bit.
        """

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """Return the device time by operator, in ns; the values add up to `step_cost(shape).device_ns`."""


def costs_one_by_one(
    cost: CostModel,
    decodes: Ints,
    context: Ints,
    window_context: Ints,
    draft_tokens: Ints | None = None,
    proposed: Ints | None = None,
) -> tuple[Ints, Ints]:
    """Return `decode_costs` by calling `step_cost` for each step: for cost models without a faster way, and with
    drafts."""
    none = np.zeros_like(decodes)
    columns = (decodes, context, window_context, none if draft_tokens is None else draft_tokens)
    steps = zip(*(column.tolist() for column in (*columns, none if proposed is None else proposed)), strict=True)
    shapes = (
        BatchShape(count, keys, in_window, (), 0, count, drafts, passes)
        for count, keys, in_window, drafts, passes in steps
    )
    costs = [cost.step_cost(shape) for shape in shapes]
    device_ns, host_ns, _ = np.array(costs, np.int64).reshape(-1, 3).T
    return device_ns, host_ns


@runtime_checkable
class DraftedCosts(Protocol):
    """A cost model with array operations for many steps with drafts."""

    def drafted_costs(
        self, decodes: Ints, context: Ints, window_context: Ints, draft_tokens: Ints, proposed: Ints
    ) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps with drafts, in ns; all arrays are (n,).

        The times equal those of `step_cost`, bit for bit.
        """


class LockstepCost(CostModel, Protocol):
    """Cost of a step that data-parallel ranks take together."""

    def lockstep_cost(self, shapes: Sequence[BatchShape]) -> StepCost:
        """Return the time of a common step of all ranks; `shapes` has the shape of each, empty if the rank is idle.

        For equal shapes it is the time of `step_cost`. It is monotone in each shape.
        """


class StageTimes(NamedTuple):
    """Times of one step in a pipeline: in each stage, of each send to the next one, and of the CPU that prepares it."""

    stages_ns: tuple[int, ...]
    sends_ns: tuple[int, ...]
    host_ns: int


class StagedCost(CostModel, Protocol):
    """Cost of a step that passes through the stages of a pipeline; `step_cost` is its time through all stages without
    waiting."""

    @property
    def stages(self) -> int:
        """Number of stages."""

    def stage_times(self, shape: BatchShape) -> StageTimes:
        """Return the times of the step `shape`; those on the device add up to `step_cost(shape).device_ns`."""
