"""Public bug reports as runs under an affine step law, against a small independent reference simulator's figures.

The cases and their expected values are those of the project's catalogue of public reports; `S` numbers name them.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases.affine import Requests, simulate, ttft_s


def test_a_prompt_larger_than_the_cache_is_refused_and_the_others_served() -> None:
    """vllm#39734: the real scheduler waits for ever, and everything behind the prompt with it."""
    requests: Requests = [(0.0, 100_000, 10)] + [(0.1, 1000, 50)] * 5
    finished = simulate(requests, blocks=76_640 // 16)
    assert finished.summary["requests"]["rejected_reasons"] == {"kv_pool": 1}
    assert ttft_s(finished, slice(1, None)).tolist() == [0.258] * 5
    assert (finished.record.end_ns - 100_000_000) / 1e9 == pytest.approx(0.662 + 0.0005, abs=1e-3)


@pytest.mark.parametrize(
    ("blocks", "duration_s", "preemptions", "recomputed"),
    [(9000, 6.901, 0, 0), (2800, 9.519, 207, 44_176), (1600, 13.799, 353, 63_325), (400, 43.512, 474, 82_678)],
)
def test_the_recompute_tax_of_a_small_pool(blocks: int, duration_s: float, preemptions: int, recomputed: int) -> None:
    """vllm#54644: 300 offline requests; the smaller the pool, the more is computed twice."""
    draw = np.random.default_rng(12345)
    requests: Requests = [(0.0, int(draw.integers(32, 257)), int(draw.integers(128, 513))) for _ in range(300)]
    finished = simulate(requests, law={"base": "8ms", "per_token": "10us"}, blocks=blocks)
    assert finished.summary["duration_s"] == pytest.approx(duration_s, abs=1e-3)
    assert finished.summary["engine"]["preemptions"] == preemptions
    assert finished.summary["engine"]["recomputed_tokens"] == recomputed
