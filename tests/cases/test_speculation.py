"""Public reports on speculative decoding, as runs, and reference values by the formulas in the tests."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from cost_models import BatchShape, StepCost
from cost_models.shape import Ints, costs_one_by_one
from simulator.scenario import parse_scenario
from simulator.speculation.expectation import expected_tokens, iid_cumulative, token_pmf
from simulator.study.prepare import prepare
from simulator.study.run import Run, execute
from tests.helpers import run, scenario

LAW = {"base": "10ms"}


def speculating(
    workload: dict[str, Any], speculation: dict[str, Any] | None, law: dict[str, Any] = LAW, **keys: Any
) -> Run:
    """Return a scenario with a linear law and a pool with these settings of speculation, or without speculation."""
    proposer = {} if speculation is None else {"speculation": speculation}
    return run(scenario(workload, law, pool=proposer, scheduler={"async_scheduling": False}, **keys))


def at_once(requests: int, output_tokens: int, prompt_tokens: int = 1) -> dict[str, Any]:
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return {"arrivals": {"process": "all_at_once"}, "requests": requests} | lengths


def recorded(path: Path, cumulative: Sequence[float], steps: int) -> tuple[dict[str, Any], int]:
    """Return a recording of `steps` steps in which a share of exactly `cumulative[i - 1]` accepts all drafts 1 to i.

    Also return its number of tokens, including the one before the first step.
    """
    counts = [sum(step < round(rate * steps) for rate in cumulative) for step in range(steps)]
    path.write_text(json.dumps({"accepted": counts}) + "\n", encoding="utf-8")
    return {"law": "replay", "file": str(path)}, 1 + sum(counts) + steps


# --- a batch too large to speculate


@dataclass(frozen=True, slots=True)
class IdealRoofline:
    """70B in BF16 on four H100, at 60% of their peak. A step takes as long as reading weights and the KV of 2,000
    tokens a sequence, or as its arithmetic; each pass of the drafter `draft` of a step of decodes alone."""

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
    """Return the output tokens a second of a decoding batch, with `drafts` drafts (0: none), under `IdealRoofline`."""
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
    prepared = prepare(scenario(at_once(batch, outputs), LAW, pool=pool))
    (served,) = prepared.resolved.pools
    served = served._replace(service=served.service._replace(cost=IdealRoofline()))
    record = execute(prepared._replace(resolved=prepared.resolved._replace(pools=(served,)))).record
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
def test_the_gain_falls_with_the_batch_until_speculation_is_slower(batch: int, expected: float) -> None:
    """vllm#17984, reversal at batch 32 and above; k = 4, alpha = 0.7: tok(.7, 4) T(b) / (T(5b) + 4 x .08 T(b))."""
    assert gain(batch, 4) == pytest.approx(expected, rel=0.02)


def test_more_drafts_are_slower_earlier() -> None:
    """The batch of the crossover falls as k grows (in the report, too: worse with larger k)."""
    crossover = {
        drafts: min(batch for batch in (64, 96, 128, 160, 192, 256, 320) if gain(batch, drafts) < 1)
        for drafts in (2, 4, 8)
    }
    assert crossover[2] > crossover[4] > crossover[8]


# --- an acceptance length above 2, and slower

#: vllm#19254: rates by position of two log lines, and the acceptance lengths and draft acceptance rates beside them.
QWEN_RATES = [((0.543, 0.357, 0.264), 2.16, 0.388), ((0.615, 0.464, 0.383), 2.46, 0.487)]


@pytest.mark.parametrize(("rates", "length", "accepted"), QWEN_RATES)
def test_the_acceptance_length_is_one_and_the_sum_of_the_rates(
    tmp_path: Path, rates: tuple[float, ...], length: float, accepted: float
) -> None:
    law, tokens = recorded(tmp_path / "accepted.jsonl", rates, 1000)
    found = speculating(
        at_once(2, tokens), {"method": "ngram", "num_speculative_tokens": 3, "acceptance": law}
    ).summary["speculation"]
    assert found["drafts"] == 2000
    assert [position["cumulative"] for position in found["per_position"]] == pytest.approx(rates)
    assert found["acceptance_length"] == pytest.approx(length, abs=0.005)
    assert found["draft_acceptance_rate"] == pytest.approx(accepted, abs=0.0005)


def qwen(speculation: dict[str, Any] | None, running: int) -> Run:
    """Return Qwen3-32B in FP8 on four H100, with `running` requests at once and calibrated costs."""
    pool: dict[str, Any] = {
        "gpu": "h100-sxm",
        "tensor_parallel": 4,
        "scheduler": {"version": "none", "max_num_seqs": 1024},
    }
    if speculation is not None:
        pool["speculation"] = speculation
    model = {"name": "qwen3-32b", "weights": "fp8"}
    document = {"name": "t", "model": model, "workload": at_once(running, 150, 400)}
    return run(parse_scenario(json.dumps(document | {"deployment": {"pools": {"main": pool}}})))


def test_at_600_running_two_tokens_a_step_are_slower_than_one() -> None:
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": {"table": "ngram-qwen3-32b-second-10s"}}
    rates = {
        running: [qwen(proposer, running).summary["throughput"]["output_tokens_per_s"] for proposer in (lookup, None)]
        for running in (8, 600)
    }
    assert rates[8][0] > 1.3 * rates[8][1]
    assert rates[600][0] < rates[600][1]


# --- acceptance is not the same at every position

#: vllm#26191 (12,208 accepted in 4,816 steps) and pull requests 24344 and 32628: cumulative rates by position, the
#: acceptance length, and by how much one alpha, that of the first position, is off. Lengths are as printed,
#: to 0.01; for k = 8 the sum of the eight rounded rates, which were printed with 3.056.
BY_POSITION = [
    ((0.74, 0.54, 0.41, 0.31, 0.23, 0.17, 0.13), 3.53, -0.03),
    ((0.77, 0.45, 0.24), 2.46, 0.36),
    ((0.81, 0.74, 0.70, 0.68, 0.66), 4.59, -0.81),
    ((0.73, 0.52, 0.36), 2.61, 0.04),
    ((0.72, 0.50, 0.34, 0.22, 0.15), 2.93, 0.14),
    ((0.71, 0.49, 0.32, 0.21, 0.14, 0.09, 0.05, 0.03), 3.04, 0.25),
]


@pytest.mark.parametrize(("rates", "length", "off"), BY_POSITION)
def test_rates_by_position_give_the_acceptance_length(
    tmp_path: Path, rates: tuple[float, ...], length: float, off: float
) -> None:
    """As the metric of a run whose steps accept in just these shares; one alpha for all positions does not give it."""
    law, tokens = recorded(tmp_path / "accepted.jsonl", rates, 100)
    proposer = {"method": "eagle", "num_speculative_tokens": len(rates), "pass_time": "1ms", "acceptance": law}
    found = speculating(at_once(3, tokens), proposer).summary["speculation"]
    assert found["drafts"] == 300
    assert found["acceptance_length"] == pytest.approx(length, abs=0.01)
    assert expected_tokens(iid_cumulative(rates[0], len(rates))) - found["acceptance_length"] == pytest.approx(
        off, abs=0.01
    )


@pytest.mark.parametrize("rates", [rates for rates, *_ in BY_POSITION])
def test_drawn_from_a_table_the_length_is_that_of_the_table(rates: tuple[float, ...]) -> None:
    """Within four standard errors of the law of tokens a step."""
    law = {"law": "table", "cumulative": list(rates)}
    proposer = {"method": "eagle", "num_speculative_tokens": len(rates), "pass_time": "1ms", "acceptance": law}
    found = speculating(at_once(64, 400), proposer).summary["speculation"]
    law_of_tokens = np.array(token_pmf(rates))
    tokens = np.arange(1, len(rates) + 2)
    mean = float(law_of_tokens @ tokens)
    error = math.sqrt(float(law_of_tokens @ (tokens - mean) ** 2) / found["drafts"])
    assert mean == pytest.approx(expected_tokens(rates))
    assert abs(found["acceptance_length"] - mean) < 4 * error


# --- the worked designs of docs/speculation.md, with calibrated costs, in short runs


def tpot_ms(name: str, *overrides: str) -> float:
    return float(simulator.run(f"designs/{name}", overrides).summary["latency"]["tpot_ms"]["mean"])


def test_a_full_batch_turns_earlier_with_more_drafts() -> None:
    """A small model drafts for 70B on four H100: two drafts pay at a batch of 96, eight do not; at 256 two do not."""
    key = "deployment.pools.main.speculation.num_speculative_tokens"
    gains = {}
    for batch, drafts in ((8, 8), (96, 2), (96, 8), (256, 2)):
        load = (f"workload.arrivals.concurrency={batch}", f"workload.requests={max(32, batch)}")
        gains[batch, drafts] = tpot_ms("full_batch", *load) / tpot_ms("full_batch_drafts", *load, f"{key}={drafts}")
    assert gains[8, 8] > 1.1
    assert gains[96, 2] > 1.1
    assert gains[96, 8] < 0.9
    assert gains[256, 2] < 1


def test_mtp_pays_on_the_decode_side() -> None:
    """1.85 tokens a step, of which the layer and the second token take some back; DeepSeek's report says 1.8 times."""
    load = ("workload.requests=60",)
    assert 1.5 < tpot_ms("reasoning", *load) / tpot_ms("reasoning_mtp", *load) < 1.85
