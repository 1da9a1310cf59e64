"""The two worked scenarios of docs/designs.md, in short runs: a nightly batch beside chat, and support chat."""

from __future__ import annotations

from functools import cache

from simulator.study.run import Run
from tests.bench.worked_designs import (
    ALONE,
    NIGHTLY,
    SUPPORT,
    UNCHUNKED,
    chat_itl_ms,
    run_with,
    scheduler,
    support_chat,
)

#: The chunks of the shipped scenario. vLLM's default, 8,192 tokens, makes p99 2.1 times that of chat alone.
CHUNKED, SMALL = "designs/nightly_batch_chunked", scheduler("max_num_batched_tokens=2048")


@cache
def night(name: str, *overrides: str) -> Run:
    """Return the run of about a quarter of an hour."""
    return run_with(name, (*overrides, "workload.requests=6000"))


def test_chunked_prefill_keeps_the_gaps_of_a_chat_beside_summaries_of_80k_tokens() -> None:
    """Also against the chat alone at the same chunk size, whose gaps are half of those at the default one."""
    beside, alone, default = night(CHUNKED), night(ALONE, *SMALL), night(ALONE)
    assert sum(beside.record.requests.prompt_tokens == 80_000) >= 3
    assert (beside.record.requests.arrival_ns == alone.record.requests.arrival_ns).all()
    p99_ms = chat_itl_ms(beside)[2]
    assert p99_ms <= 2 * chat_itl_ms(alone)[2]
    assert p99_ms <= 2 * chat_itl_ms(default)[2]


def test_without_chunks_a_summary_stops_every_chat_for_its_whole_prefill() -> None:
    """The gap is 13.5 s. Fewer than one gap in a hundred is one: it changes p99.9 and the longest, but not p99."""
    whole, chunked = chat_itl_ms(night(UNCHUNKED)), chat_itl_ms(night(CHUNKED))
    assert whole[4] > 13_500
    assert whole[4] > 20 * chunked[4]
    assert whole[3] > 2 * chunked[3]


def test_the_variants_differ_in_nothing_else() -> None:
    """The chunked one is the default one with small chunks, so that the tables and the shipped files say the same."""
    assert chat_itl_ms(night(CHUNKED)) == chat_itl_ms(night(NIGHTLY, *SMALL))


def test_support_chat_each_measure_helps_and_both_help_most() -> None:
    """TTFT p95: prefix caching saves 6,000 of 10,200 prompt tokens, trimming 2,000, and both 8,000."""
    load = ("workload.requests=600", "workload.prompt_pool.prompts=600")
    p95_s = {
        measure: run_with(support_chat(measure), load).summary["latency"]["ttft_ms"]["p95"] / 1e3 for measure in SUPPORT
    }
    assert p95_s["both"] < p95_s["caching"] < p95_s["trimmed"] < p95_s["neither"]
    # Service times are as the tokens computed, 4,200 and 2,200 of 10,200; what waits shrinks more than that.
    assert p95_s["caching"] / p95_s["neither"] < 4200 / 10_200
    assert p95_s["both"] / p95_s["neither"] < 2200 / 10_200
