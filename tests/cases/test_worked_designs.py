"""The two worked scenarios of docs/designs.md, in short runs: a nightly batch beside chat, and support chat."""

from __future__ import annotations

import pytest

from simulator.study.run import Run
from tests.bench.worked_designs import (
    MEASURES,
    NIGHTLY,
    SUPPORT,
    UNCHUNKED,
    budget,
    chat_itl_ms,
    run_with,
    without_summaries,
)

#: A chunk that a step of chat hides. vLLM's default of 8,192 tokens is 2.1 to 2.2 times chat alone (docs/designs.md).
CHUNKED = budget(2048)


def night(*overrides: str) -> Run:
    """A quarter of an hour and a bit."""
    return run_with(NIGHTLY, (*overrides, "workload.requests=6000"))


def test_chunked_prefill_keeps_the_gaps_of_a_chat_beside_summaries_of_80k_tokens() -> None:
    """Also against the chat alone at the same chunk size, whose gaps are half of those at the default one."""
    beside, alone, default = night(*CHUNKED), night(*CHUNKED, *without_summaries()), night(*without_summaries())
    assert sum(beside.record.requests.prompt_tokens == 80_000) >= 3
    assert (beside.record.requests.arrival_ns == alone.record.requests.arrival_ns).all()
    p99_ms = chat_itl_ms(beside)[2]
    assert p99_ms <= 2 * chat_itl_ms(alone)[2]
    assert p99_ms <= 2 * chat_itl_ms(default)[2]


def test_without_chunks_a_summary_stops_every_chat_for_its_whole_prefill() -> None:
    """Which is 13.5 s. p99 does not see it, since those are less than one gap in a hundred; p99.9 and the longest do."""
    whole, chunked = chat_itl_ms(night(*UNCHUNKED)), chat_itl_ms(night(*CHUNKED))
    assert whole[4] > 13_500
    assert whole[4] > 20 * chunked[4]
    assert whole[3] > 2 * chunked[3]


def test_support_chat_each_measure_helps_and_both_help_most() -> None:
    """TTFT p95: prefix caching saves 6,000 of 10,200 prompt tokens, trimming 2,000, and both 8,000."""
    load = ("workload.requests=600", "workload.prompt_pool.prompts=600")
    p95_s = {
        name: run_with(SUPPORT, (*load, *overrides)).summary["latency"]["ttft_ms"]["p95"] / 1e3
        for name, overrides in MEASURES.items()
    }
    assert p95_s["both"] < p95_s["prefix caching"] < p95_s["trimmed"] < p95_s["neither"]
    # The service times are as the tokens computed, 4,200 : 10,200; what waits shrinks more than that.
    assert p95_s["prefix caching"] / p95_s["neither"] < 4200 / 10_200
    assert p95_s["both"] / p95_s["neither"] < 2200 / 10_200
