"""The linear law: the cost model of closed forms and of scheduler recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cost_models.shape import BatchShape, Ints, StepCost


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """A step takes a base time and a time for each token and each key attended to; all in integer ns.

    `per_token_ns` counts every scheduled token, drafts too; `per_prefill_token_ns` those of chunks and
    `per_decode_token_ns` the decodes, on top. `per_context_token_ns` counts keys: of each decode its context
    with the new token, of each chunk the tokens before it and its own.
    """

    base_ns: int = 0
    per_token_ns: int = 0
    per_prefill_token_ns: int = 0
    per_decode_token_ns: int = 0
    per_context_token_ns: int = 0
    host_ns: int = 0
    #: The law makes no difference between attention kinds.
    window: ClassVar[int] = 0

    def step_cost(self, shape: BatchShape) -> StepCost:
        """The time of the step."""
        decodes, keys, _, chunks, _, _, drafts, _ = shape
        prefill = 0
        for tokens, context in chunks:
            prefill += tokens
            keys += tokens + context
        device_ns = (
            self.base_ns
            + self.per_token_ns * (decodes + drafts + prefill)
            + self.per_prefill_token_ns * prefill
            + self.per_decode_token_ns * decodes
            + self.per_context_token_ns * keys
        )
        return StepCost(device_ns, self.host_ns)

    def lockstep_cost(self, shapes: Sequence[BatchShape]) -> StepCost:
        """The time of a step that several ranks take together: that of the slowest. An idle one has an empty shape."""
        costs = [self.step_cost(shape) for shape in shapes if shape.tokens]
        return StepCost(max((cost.device_ns for cost in costs), default=0), self.host_ns if costs else 0)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Device time of each of k pure decode steps, `shape` the first. Raises ValueError for chunks."""
        if shape.chunks:
            raise ValueError(f"expected a pure decode step, found {len(shape.chunks)} prefill chunks")
        first = self.step_cost(shape).device_ns
        return first + self.per_context_token_ns * shape.decodes * np.arange(k, dtype=np.int64)

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Device and host time of many pure decode steps, as `step_cost` has them."""
        a_decode = self.per_token_ns + self.per_decode_token_ns
        device_ns = self.base_ns + a_decode * decodes.astype(np.int64) + self.per_context_token_ns * context
        return device_ns, np.full(len(decodes), self.host_ns, np.int64)

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """The device time by term of the law."""
        prefill = sum(tokens for tokens, _ in shape.chunks)
        keys = shape.decode_context + sum(tokens + context for tokens, context in shape.chunks)
        return {
            "base": self.base_ns,
            "tokens": self.per_token_ns * shape.tokens,
            "prefill_tokens": self.per_prefill_token_ns * prefill,
            "decode_tokens": self.per_decode_token_ns * shape.decodes,
            "context": self.per_context_token_ns * keys,
        }
