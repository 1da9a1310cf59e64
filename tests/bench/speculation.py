"""When speculation pays: the tables of docs/speculation.md. `python -m tests.bench.speculation crossover|designs`."""

from __future__ import annotations

import sys

import simulator

_KEY = "deployment.pools.main.speculation"
_BATCHES = (1, 8, 16, 32, 64, 96, 128, 256)
#: How the drafts of `full_batch_drafts` are chosen, by column.
_LENGTHS = {f"k = {k}": (f"{_KEY}.num_speculative_tokens={k}",) for k in (1, 2, 4, 8)} | {
    "adaptive": (f"{_KEY}.length.rule=adaptive",)
}
#: Worked designs: without speculation, with it, and rates of arrival.
_DESIGNS = (
    ("colocated", "colocated_eagle", (2, 5, 8, 10)),
    ("colocated", "colocated_draft_model", (2, 5, 8)),
    ("reasoning", "reasoning_mtp", (0.25, 0.5, 1, 2)),
    ("code_edits", "code_edits_ngram", (1, 4, 8, 12)),
)


def tpot_ms(name: str, *overrides: str) -> float:
    """Return the mean TPOT in ms of a run of a shipped design."""
    return float(simulator.run(f"designs/{name}", overrides).summary["latency"]["tpot_ms"]["mean"])


def crossover() -> None:
    """Print the speed-up of TPOT by batch size and number of drafts, for batches that are always full."""
    print("| batch | TPOT without, ms |", " | ".join(_LENGTHS), "|")
    print("|---" * (2 + len(_LENGTHS)) + "|")
    for batch in _BATCHES:
        load = (f"workload.arrivals.concurrency={batch}", f"workload.requests={max(64, 3 * batch)}")
        plain = tpot_ms("full_batch", *load)
        gains = [plain / tpot_ms("full_batch_drafts", *load, *overrides) for overrides in _LENGTHS.values()]
        print(f"| {batch} | {plain:.1f} |", " | ".join(f"{gain:.2f}" for gain in gains), "|", flush=True)


def designs() -> None:
    """Print the worked designs with and without speculation, by rate."""
    print("| design | requests/s | running | TPOT, ms | E2E, s | TPOT, E2E faster by | length | time drafting |")
    print("|---|---|---|---|---|---|---|---|")
    for plain, drafting, rates in _DESIGNS:
        for rate in rates:
            load = (f"workload.arrivals.rate={rate}",)
            one, other = (simulator.run(f"designs/{name}", load).summary for name in (plain, drafting))
            tpot, e2e = ([each["latency"][name]["mean"] for each in (one, other)] for name in ("tpot_ms", "e2e_ms"))
            found = other["speculation"]
            running = one["throughput"]["output_tokens_per_s"] * tpot[0] / 1e3
            print(
                f"| {drafting} | {rate:g} | {running:.0f} | {tpot[0]:.1f} -> {tpot[1]:.1f} | "
                f"{e2e[0] / 1e3:.1f} -> {e2e[1] / 1e3:.1f} | {tpot[0] / tpot[1]:.2f}, {e2e[0] / e2e[1]:.2f} | "
                f"{found['acceptance_length']:.2f} | {100 * found['draft_time_share']:.0f}% |",
                flush=True,
            )


if __name__ == "__main__":
    {"crossover": crossover, "designs": designs}[sys.argv[1]]()
