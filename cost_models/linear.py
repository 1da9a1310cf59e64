"""The linear cost model, for closed forms and for recordings of schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cost_models.shape import BatchShape, Ints, StepCost


@dataclass(frozen=True, slots=True)
class LinearLaw:
    """A cost model in which a step takes a base time, and a time for each token and each attended key; all in integer
    ns.

    `per_token_ns` counts every scheduled token, drafts included; `per_prefill_token_ns` and `per_decode_token_ns` are
    added for tokens of chunks and for decodes. `per_context_token_ns` counts keys: the context of each decode with its
    new token, and for each chunk the tokens before it and its own.
    """

    base_ns: int = 0
    per_token_ns: int = 0
    per_prefill_token_ns: int = 0
    per_decode_token_ns: int = 0
    per_context_token_ns: int = 0
    host_ns: int = 0
    #: No difference is made between layers with full attention and with a window.
    window: ClassVar[int] = 0

    def step_cost(self, shape: BatchShape) -> StepCost:
        """Return the time of the step."""
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
        """Return the time of a common step of several ranks: that of the slowest. An idle rank has an empty shape."""
        costs = [self.step_cost(shape) for shape in shapes if shape.tokens]
        return StepCost(max((cost.device_ns for cost in costs), default=0), self.host_ns if costs else 0)

    def decode_run(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """Return the device time of each of k pure decode steps, in ns; `shape` is the first. Raises ValueError for
        chunks."""
        if shape.chunks:
            raise ValueError(f"expected a pure decode step, found {len(shape.chunks)} prefill chunks")
        first = self.step_cost(shape).device_ns
        return first + self.per_context_token_ns * shape.decodes * np.arange(k, dtype=np.int64)

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        """Return the device and the host time of many pure decode steps, equal to those of `step_cost`."""
        a_decode = self.per_token_ns + self.per_decode_token_ns
        device_ns = self.base_ns + a_decode * decodes.astype(np.int64) + self.per_context_token_ns * context
        return device_ns, np.full(len(decodes), self.host_ns, np.int64)

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        """Return the device time by term of the law."""
        prefill = sum(tokens for tokens, _ in shape.chunks)
        keys = shape.decode_context + sum(tokens + context for tokens, context in shape.chunks)
        return {
            "base": self.base_ns,
            "tokens": self.per_token_ns * shape.tokens,
            "prefill_tokens": self.per_prefill_token_ns * prefill,
            "decode_tokens": self.per_decode_token_ns * shape.decodes,
            "context": self.per_context_token_ns * keys,
        }
