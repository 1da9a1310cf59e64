"""The two worked scenarios of docs/designs.md: `python -m tests.bench.worked_designs nightly|support|capacity`.

`nightly` and `support` print the tables, `capacity` the highest stable rates, of which the scenarios take 70%.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulator.common.shipped import find_scenario
from simulator.results.itl import InterTokenLatencies
from simulator.scenario import load_scenario
from simulator.study.prepare import prepare
from simulator.study.run import Run, execute
from tests.bench.stable_rate import highest_stable_rate

ALONE, NIGHTLY = "designs/nightly_batch_alone", "designs/nightly_batch_default"
UNCHUNKED = "designs/nightly_batch_unchunked"
SUPPORT = ("neither", "caching", "trimmed", "both")
_SCHEDULER = "deployment.pools.main.scheduler"
_BUDGETS = (8192, 4096, 2048, 1024, 512)
#: Most tokens of long prompts in a step, in addition to the budget.
_THRESHOLDS = ((8192, 1024), (4096, 1024), (2048, 1024), (2048, 512))
_WHOLE = ("enable_chunked_prefill=false", "max_num_batched_tokens=131072")
_CHAT = 0  # the number of the class


def support_chat(measure: str) -> str:
    return f"designs/support_chat_{measure}"


def run_with(name: str, overrides: Sequence[str] = ()) -> Run:
    return execute(prepare(load_scenario(find_scenario(name), overrides)))


def scheduler(*settings: str) -> tuple[str, ...]:
    return tuple(f"{_SCHEDULER}.{setting}" for setting in settings)


def chat_itl_ms(finished: Run) -> list[float]:
    """Return the gaps between tokens of chats in ms: median, 95%, 99%, 99.9% and the longest."""
    gaps = InterTokenLatencies(finished.record).of(finished.record.requests.class_id == _CHAT)
    return [gaps.quantile(p) / 1e6 for p in (0.5, 0.95, 0.99, 0.999, 1.0)]


def _nightly_settings() -> dict[str, tuple[str, ...]]:
    settings = {f"{tokens} tokens a step": scheduler(f"max_num_batched_tokens={tokens}") for tokens in _BUDGETS}
    settings["unchunked"] = scheduler(*_WHOLE)
    for tokens, most in _THRESHOLDS:
        limits = (f"max_num_batched_tokens={tokens}", f"long_prefill_token_threshold={most}")
        settings[f"{tokens}, of a prompt {most}"] = scheduler(*limits)
    return settings


def print_nightly(requests: int) -> None:
    """Print the chat's gaps and TTFT alone and with the batch, by chunk size."""
    heads = ("setting", "batch", "ITL p50", "p95", "p99", "p99.9", "max, ms", "p99 / alone", "TTFT p50", "p99, s")
    print("| " + " | ".join((*heads, "summary's TTFT, s")) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for setting, overrides in _nightly_settings().items():
        alone = 0.0
        for name in (ALONE, NIGHTLY):
            finished = run_with(name, (*overrides, f"workload.requests={requests}"))
            itl_ms = chat_itl_ms(finished)
            alone = alone or itl_ms[2]
            by_class = finished.summary["by_class"]
            ttft_s = [by_class["chat"]["ttft_ms"][p] / 1e3 for p in ("p50", "p99")]
            batch, summary = "no", ""
            if name == NIGHTLY:
                batch, summary = "yes", f"{by_class['summary']['ttft_ms']['p50'] / 1e3:.1f}"
            cells = [setting, batch, *(f"{value:,.0f}" for value in itl_ms), f"{itl_ms[2] / alone:.2f}"]
            print("| " + " | ".join([*cells, *(f"{value:.2f}" for value in ttft_s), summary]) + " |", flush=True)


def print_support(requests: int) -> None:
    """Print the TTFT with each measure and with both."""
    print("| | TTFT p50 | p95 | p99, s | ITL p99, ms | prompt tokens found in the cache |")
    print("|---|---|---|---|---|---|")
    load = (f"workload.requests={requests}", f"workload.prompt_pool.prompts={requests}")
    for measure in SUPPORT:
        summary = run_with(support_chat(measure), load).summary
        ttft, itl = summary["latency"]["ttft_ms"], summary["latency"]["itl_ms"]
        hits = summary.get("prefix_cache", {"hit_rate": 0.0})["hit_rate"]
        seconds = " | ".join(f"{ttft[p] / 1e3:.2f}" for p in ("p50", "p95", "p99"))
        print(f"| {measure} | {seconds} | {itl['p99']:.0f} | {hits:.0%} |")


def print_capacity() -> None:
    """Print the highest stable rates of the chats, in requests a second."""
    for name, low, high, requests in ((ALONE, 1, 40, 50_000), (support_chat("neither"), 0.2, 4, 10_000)):
        rate = highest_stable_rate(name, low, high, requests)
        print(f"{name}: {rate:.3g}/s, of which 70% is {0.7 * rate:.3g}/s")


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
