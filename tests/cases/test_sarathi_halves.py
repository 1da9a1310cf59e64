"""Sarathi-Serve (OSDI '24), Table 4: what hybrid batches and chunks do apart, and together.

Yi-34B on two A100 at a budget of 1,024 tokens, 128 requests. The table does not say at which rate; these are below
saturation and high enough for a prompt to be in more than one step of a hundred. The paper's numbers, TTFT p50 and TBT
p99 in s: openchat 0.53 and 0.68 (hybrid batching only), 1.04 and 0.17 (chunked prefills only), 0.76 and 0.14 (both);
arxiv 3.78 and 1.38, 5.38 and 0.20, 3.90 and 0.17.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from simulator.api.runs import run
from simulator.scenario import parse_scenario

VARIANTS: dict[str, dict[str, Any]] = {
    "hybrid batching": {"chunked": False, "max_num_batched_tokens": 32_768},
    "chunked prefills": {"batching": "alternating", "max_num_batched_tokens": 1024},
    "both": {"max_num_batched_tokens": 1024},
}


def lengths(median: float, p90: float) -> dict[str, Any]:
    """Return a lognormal law by its median and 90th percentile, as the paper gives them."""
    variance = (math.log(p90 / median) / 1.2815515655) ** 2
    mean, cv = median * math.exp(variance / 2), math.sqrt(math.exp(variance) - 1)
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "min": 1, "max": 16_000}


def latencies(load: dict[str, Any], scheduler: dict[str, Any]) -> tuple[float, float]:
    """Return the median TTFT and the 99th percentile of the gaps between tokens, in s."""
    pool = {
        "gpu": "a100-sxm-80gb",
        "tensor_parallel": 2,
        "scheduler": {"policy": "sarathi", "max_model_len": 32_768, **scheduler},
    }
    document = {"name": "halves", "model": "yi-34b", "workload": load, "deployment": {"pools": {"main": pool}}}
    latency = run(parse_scenario(json.dumps(document))).summary["latency"]
    return latency["ttft_ms"]["p50"] / 1e3, latency["itl_ms"]["p99"] / 1e3


@pytest.mark.parametrize(
    ("rate", "prompts", "outputs"),
    [(1.0, lengths(1730, 5696), lengths(415, 834)), (0.3, lengths(7059, 12_985), lengths(208, 371))],
    ids=["openchat", "arxiv"],
)
def test_table_4_each_half_helps_one_latency_and_both_together_the_tail(
    rate: float, prompts: dict[str, Any], outputs: dict[str, Any]
) -> None:
    load = {"arrivals": {"process": "poisson", "rate": rate}, "requests": 128}
    load |= {"prompt_tokens": prompts, "output_tokens": outputs}
    measured = {name: latencies(load, scheduler) for name, scheduler in VARIANTS.items()}
    ttft_s, tbt_s = ({name: pair[at] for name, pair in measured.items()} for at in (0, 1))
    assert ttft_s["hybrid batching"] < ttft_s["both"] < ttft_s["chunked prefills"]
    assert tbt_s["both"] < tbt_s["chunked prefills"] < tbt_s["hybrid batching"] / 2
