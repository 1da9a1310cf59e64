"""Public reports on speculative decoding, as runs; P numbers name the cases of the project's catalogue of them.

C7, C5c and C5d are reference values of that catalogue, reckoned by the formulas that the tests name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models import BatchShape, StepCost
from cost_models.shape import Ints, costs_one_by_one
from simulator.scenario import parse_scenario
from simulator.speculation.expectation import expected_tokens, iid_cumulative, speed_up
from simulator.study.run import Run, execute, prepare
from tests.helpers import PLACEHOLDER, request_table, run, scenario

# --- P37: a batch too large to speculate


@dataclass(frozen=True, slots=True)
class IdealRoofline:
    """C7: 70B in BF16 on four H100, 60% of their peak. A step takes as long as reading weights and the KV of 2,000 tokens
    a sequence, or as its arithmetic; each pass of the drafter `draft` of a step of decodes alone."""

    draft: float = 0.08
    window: int = 0

    def step_cost(self, shape: BatchShape) -> StepCost:
        plain_ns = self._ns(shape.decodes, shape.decodes)
        verified_ns = self._ns(shape.decodes, shape.tokens)
        draft_ns = round(shape.proposed * self.draft * plain_ns)
        return StepCost(verified_ns + draft_ns, 0, draft_ns)

    @staticmethod
    def _ns(sequences: int, tokens: int) -> int:
        weights, kv = 140e9, sequences * 2000 * 327_680
        return round(1e9 * max((weights + kv) / (4 * 3.35e12), 2 * 70e9 * tokens / (4 * 989e12 * 0.6)))

    def decode_run(self, shape: BatchShape, k: int) -> np.ndarray:
        return np.full(k, self.step_cost(shape).device_ns)

    def decode_costs(self, decodes: Ints, context: Ints, window_context: Ints) -> tuple[Ints, Ints]:
        return costs_one_by_one(self, decodes, context, window_context)

    def breakdown(self, shape: BatchShape) -> dict[str, int]:
        return {"step": self.step_cost(shape).device_ns}


@cache
def rate(batch: int, drafts: int, tokens: int = 12_000) -> float:
    """Output tokens a second while all sequences of a batch decode, with so many drafts (0: none) under C7's roofline."""
    outputs = max(tokens // batch, 50)
    pool: dict[str, Any] = {"scheduler": {"max_num_batched_tokens": 10**6, "max_num_seqs": batch}}
    if drafts:
        acceptance = {"law": "iid", "alpha": 0.7}
        pool["speculation"] = {
            "method": "eagle",
            "num_speculative_tokens": drafts,
            "pass_time": "1ms",
            "acceptance": acceptance,
        }
    workload = {"arrivals": {"process": "all_at_once"}, "requests": batch, "prompt_tokens": 1, "output_tokens": outputs}
    prepared = prepare(scenario(workload, {"base": "1ms"}, pool=pool))
    (served,) = prepared.resolved.pools
    served = replace(served, service=replace(served.service, cost=IdealRoofline()))
    record = execute(replace(prepared, resolved=replace(prepared.resolved, pools=(served,)))).record
    steps = record.steps
    full = np.flatnonzero(steps.decodes == batch)
    seconds = (steps.end_ns - steps.start_ns)[full].sum() / 1e9
    brought = len(full) * batch
    if drafts:
        positions = record.draft_positions
        verified = positions.sequences[positions.depth == 0].sum()
        brought *= 1 + positions.accepted.sum() / verified
    return float(brought / seconds)


def gain(batch: int, drafts: int) -> float:
    return rate(batch, drafts) / rate(batch, 0)


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 2.101), (8, 2.101), (32, 2.101), (64, 1.622), (128, 1.075), (256, 0.769)]
)
def test_p37_the_gain_falls_with_the_batch_until_speculation_is_slower(batch: int, expected: float) -> None:
    """vllm#17984, reversal at batch 32 and above; C7, k = 4, alpha = 0.7: tok(.7, 4) T(b) / (T(5b) + 4 x .08 T(b))."""
    assert gain(batch, 4) == pytest.approx(expected, rel=0.02)


def test_p37_more_drafts_are_slower_earlier() -> None:
    """The batch of the crossover falls as k grows (in the report, too: worse with larger k)."""
    crossover = {
        drafts: min(batch for batch in (64, 96, 128, 160, 192, 256, 320) if gain(batch, drafts) < 1)
        for drafts in (2, 4, 8)
    }
    assert crossover[2] > crossover[4] > crossover[8]
