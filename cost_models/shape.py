"""The contract between a scheduler's step and its price: what is computed, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


class BatchShape(NamedTuple):
    """Work of one step, in the totals that its cost depends on.

    A decode is a sequence that computes one token; a chunk computes `tokens` prompt tokens of one sequence on top of
    `context` tokens computed earlier. Contexts are per sequence and layer: a kernel's bytes follow from the model.
    """

    decodes: int = 0
    #: Keys that the decodes attend to, the new token included, summed over them: full-attention layers.
    decode_context: int = 0
    #: The same for sliding-window layers: each sequence counts at most the window. 0 if the model has none.
    decode_window_context: int = 0
    #: (tokens, context) of each prefill chunk.
    chunks: tuple[tuple[int, int], ...] = ()
    #: Requests that are in a step for the first time.
    new_requests: int = 0
    #: Sequences that sample a token at the end of the step.
    sampled: int = 0
    #: Draft tokens to verify, beyond one token a decode.
    draft_tokens: int = 0
    #: Drafts that are proposed after the step for each sequence that samples, one pass of the drafter after the other.
    proposed: int = 0

    @property
    def tokens(self) -> int:
        """Scheduled tokens: decodes, drafts and prefill."""
        return self.decodes + self.draft_tokens + sum(tokens for tokens, _ in self.chunks)


class StepCost(NamedTuple):
    """Time of one step: of the device, and of the CPU that prepares it (hidden under asynchronous scheduling).

    `draft_ns` is the part of the device's time beyond the target's kernels and their own fixed part: making drafts, and
    what a step with drafts takes besides (rejection sampling).
    """

    device_ns: int
    host_ns: int
    draft_ns: int = 0


class CostModel(Protocol):
    """Cost of a step. Monotone in tokens and context, and never below the physical bound."""

    @property
    def window(self) -> int:
        """The sliding window that `decode_window_context` counts up to, or 0 if the model has none."""

    def step_cost(self, shape: BatchShape) -> StepCost:
        """The time of the step `shape`, in at most 2 us of CPU."""

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Device time of each of k pure decode steps in a row, `shape` the first: equal to k calls of `step_cost`, bit
        for bit, with `decode_context` growing by `decodes` a step and the window context constant. The host time of
        such steps must not change."""

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Device and host time of many pure decode steps, each of which samples as many tokens as it has decodes: equal
        to `step_cost` of each, bit for bit. The arrays are (n,), with 1 decode or more a step."""

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """The device time by operator, in ns; the values add up to `step_cost(shape).device_ns`."""


def costs_one_by_one(
    cost: CostModel,
    decodes: Ints,
    context: Ints,
    window_context: Ints,
    draft_tokens: Ints | None = None,
    proposed: Ints | None = None,
) -> tuple[Ints, Ints]:
    """`decode_costs` for a cost model that knows no faster way than `step_cost`, or for steps with drafts."""
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


class LockstepCost(CostModel, Protocol):
    """Cost of a step that the ranks of data parallelism take together."""

    def lockstep_cost(self, shapes: Sequence[BatchShape]) -> StepCost:
        """The time of a step of all ranks, `shapes` theirs, empty ones of those that are idle. Of equal shapes it is
        `step_cost`. Monotone in each shape."""


class StageTimes(NamedTuple):
    """Times of one step on its way through a pipeline: of each stage, of the send from each to the next one, and of the
    CPU that prepares the step."""

    stages_ns: tuple[int, ...]
    sends_ns: tuple[int, ...]
    host_ns: int


class StagedCost(CostModel, Protocol):
    """Cost of a step that passes the stages of a pipeline; `step_cost` is its whole way without any waiting."""

    @property
    def stages(self) -> int:
        """Number of stages."""

    def stage_times(self, shape: BatchShape) -> StageTimes:
        """The times of the step `shape`; those on the device add up to `step_cost(shape).device_ns`."""
