"""Memory and time of long runs: what runs of one and of two million requests foretell of ten million."""

from __future__ import annotations

import pytest

from tests.bench.commands import Command, run_of, usage_of

pytestmark = pytest.mark.bench


def short_requests(millions: int) -> Command:
    """A run of requests of some 100 prompt and 4 output tokens, with a results directory."""
    return run_of(
        "bench/steady_100k",
        f"workload.requests={millions * 10**6}",
        "model=qwen2.5-0.5b",
        "workload.arrivals.rate=300",
        "workload.prompt_tokens={distribution: lognormal, mean: 100, cv: 0.5, max: 1000}",
        "workload.output_tokens={distribution: lognormal, mean: 4, cv: 0.5, max: 16}",
        "--out",
        "OUT",
    )


def test_ten_million_requests_take_at_most_2_gb_and_ten_times_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Freed arrays go back to the system at once, as the larger ones of longer runs do.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 18))
    one, two = (usage_of(short_requests(millions)) for millions in (1, 2))
    assert two.peak_mb + 8 * (two.peak_mb - one.peak_mb) <= 2000
    assert two.cpu_s <= 2.2 * one.cpu_s
