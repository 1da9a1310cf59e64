"""The two worked scenarios of docs/designs.md: `python -m tests.bench.worked_designs nightly|support|capacity`.

`nightly` and `support` print the tables, `capacity` the highest stable rates, of which the scenarios take 70%.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from simulator.data import find_scenario
from simulator.results.token_gaps import TokenGaps
from simulator.scenario import load_scenario
from simulator.scenario.reader import plain
from simulator.study.run import Run, execute, prepare
from tests.bench.stable_rate import highest_stable_rate

NIGHTLY, SUPPORT = "designs/nightly_batch_default", "designs/support_chat_neither"
SCHEDULER = "deployment.pools.main.scheduler"
CHAT = 0  # the number of the class

UNCHUNKED = (f"{SCHEDULER}.enable_chunked_prefill=false", f"{SCHEDULER}.max_num_batched_tokens=131072")
BUDGETS = (8192, 4096, 2048, 1024, 512)
#: Of long prompts at most so many tokens in a step, beside a budget.
THRESHOLDS = ((8192, 1024), (4096, 1024), (2048, 1024), (2048, 512))

CACHING = (f"{SCHEDULER}.enable_prefix_caching=true",)
#: 6 of 12 chunks: 2,000 tokens of retrieved text.
TRIMMED = ("workload.prompt_tokens.min=8050", "workload.prompt_tokens.max=8350")
MEASURES = {"neither": (), "prefix caching": CACHING, "trimmed": TRIMMED, "both": (*CACHING, *TRIMMED)}


def run_with(name: str, overrides: Sequence[str]) -> Run:
    return execute(prepare(load_scenario(find_scenario(name), overrides)))


def budget(tokens: int) -> tuple[str, ...]:
    """Chunked prefill at so many tokens a step."""
    return (f"{SCHEDULER}.max_num_batched_tokens={tokens}",)


def without_summaries() -> tuple[str, ...]:
    """The nightly workload with summaries of one token in and out: the chat's arrivals and lengths stay what they are."""
    chat, summary = plain(load_scenario(find_scenario(NIGHTLY)))["workload"]["classes"]
    nothing = summary | {"prompt_tokens": 1, "output_tokens": 1}
    return (f"workload.classes={json.dumps([chat, nothing])}",)


def chat_itl_ms(finished: Run) -> list[float]:
    """Gaps between tokens of chats: median, 95%, 99%, 99.9% and the longest, in ms."""
    gaps = TokenGaps(finished.record).of(finished.record.requests.class_id == CHAT)
    return [gaps.quantile(p) / 1e6 for p in (0.5, 0.95, 0.99, 0.999, 1.0)]


def print_nightly(requests: int) -> None:
    """The chat's gaps and TTFT alone and beside the batch, over chunk sizes."""
    settings = {f"{tokens} tokens a step": budget(tokens) for tokens in BUDGETS}
    settings |= {"unchunked": UNCHUNKED}
    settings |= {
        f"{tokens}, of a prompt {most}": (*budget(tokens), f"{SCHEDULER}.long_prefill_token_threshold={most}")
        for tokens, most in THRESHOLDS
    }
    print(
        "| setting | batch | ITL p50 | p95 | p99 | p99.9 | max, ms | TTFT p50 | p99, s | p99 / alone | summary TTFT, s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, overrides in settings.items():
        alone = 0.0
        for batch, classes in (("no", without_summaries()), ("yes", ())):
            finished = run_with(NIGHTLY, (*overrides, *classes, f"workload.requests={requests}"))
            p50, p95, p99, p999, most = chat_itl_ms(finished)
            alone = alone or p99
            by_class = finished.summary["by_class"]
            ttft = by_class["chat"]["ttft_ms"]
            summary = f"{by_class['summary']['ttft_ms']['p50'] / 1e3:.1f}" if batch == "yes" else ""
            print(
                f"| {name} | {batch} | {p50:.1f} | {p95:.1f} | {p99:.1f} | {p999:.0f} | {most:,.0f} "
                f"| {ttft['p50'] / 1e3:.2f} | {ttft['p99'] / 1e3:.2f} | {p99 / alone:.2f} | {summary} |"
            )


def print_support(requests: int) -> None:
    """The TTFT with each measure and with both."""
    print("| measure | TTFT p50 | p95 | p99, s | ITL p99, ms | prompt tokens found in the cache |")
    print("|---|---|---|---|---|---|")
    load = (f"workload.requests={requests}", f"workload.prompt_pool.prompts={requests}")
    for name, overrides in MEASURES.items():
        summary = run_with(SUPPORT, (*load, *overrides)).summary
        ttft, itl = summary["latency"]["ttft_ms"], summary["latency"]["itl_ms"]
        hits = summary.get("prefix_cache", {"hit_rate": 0.0})["hit_rate"]
        seconds = " | ".join(f"{ttft[p] / 1e3:.2f}" for p in ("p50", "p95", "p99"))
        print(f"| {name} | {seconds} | {itl['p99']:.0f} | {hits:.0%} |")


def print_capacity() -> None:
    """The highest stable rates of the chats, in requests a second."""
    chat = highest_stable_rate(NIGHTLY, 1, 40, overrides=without_summaries())
    print(f"{NIGHTLY}, chat alone: {chat:.2f}/s, of which 70% is {0.7 * chat:.2f}/s")
    support = highest_stable_rate(SUPPORT, 0.2, 4, 10_000)
    print(f"{SUPPORT}: {support:.3f}/s, of which 70% is {0.7 * support:.2f}/s")


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    if asked == "nightly":
        print_nightly(41_600)
    elif asked == "support":
        print_support(6000)
    elif asked == "capacity":
        print_capacity()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
