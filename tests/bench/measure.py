"""CPU seconds and memory of whole commands: `python -m tests.bench.measure [RUNS]`, which prints a row a command."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TEN_REQUESTS = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},100,10\n" for i in range(10))


@dataclass(frozen=True, slots=True)
class Usage:
    """User and system time of a process, and its peak resident memory."""

    cpu_s: float
    peak_mb: float


def usage_of(command: list[str]) -> Usage:
    """Run a command to its end; it must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, spent = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return Usage(spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024)


def median_usage(runs: int, *arguments: str) -> Usage:
    """The medians over several runs of `servesim run` with these arguments, in which TEN and OUT stand for the trace of
    ten requests and for a results directory."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "ten.csv"
        trace.write_text(TEN_REQUESTS)
        places = {"TEN": str(trace), "OUT": str(Path(folder) / "out")}
        named = [places.get(argument, argument) for argument in arguments]
        command = [sys.executable, "-m", "simulator.cli", "run", *named]
        usages = [usage_of(command) for _ in range(runs)]
    return Usage(
        statistics.median(usage.cpu_s for usage in usages), statistics.median(usage.peak_mb for usage in usages)
    )


MANY = ("bench/steady_100k", "--set", "workload.requests=1000000")

#: What is measured, and the limits in CPU seconds and MB.
COMMANDS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "ten requests": (("quickstart", "--trace", "TEN"), 1.0, 300),
    "steady_100k": (("bench/steady_100k", "--out", "OUT"), 5.0, 300),
    "defaults_100k": (("bench/defaults_100k", "--out", "OUT"), 9.0, 400),
    "dense_100k": (("bench/dense_100k", "--out", "OUT"), 5.0, 300),
    "prompt_pool_12k": (("bench/prompt_pool_12k", "--out", "OUT"), 4.0, 300),
    "pair_100k": (("bench/pair_100k", "--out", "OUT"), 6.0, 300),
    "apart_100k": (("bench/apart_100k", "--out", "OUT"), 9.0, 400),
    "speculative_100k": (("bench/speculative_100k", "--out", "OUT"), 16.0, 600),
    "fleet_1m": (("bench/fleet_1m", "--out", "OUT"), 60.0, 1000),
    "steady, 1,000,000 requests": ((*MANY, "--out", "OUT"), 60.0, 1000),
}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"medians of {runs} runs")
    for name, (arguments, cpu_s, peak_mb) in COMMANDS.items():
        usage = median_usage(runs, *arguments)
        print(f"{name}: {usage.cpu_s:.2f} CPU s (at most {cpu_s:g}), {usage.peak_mb:.0f} MB (at most {peak_mb:g})")


if __name__ == "__main__":
    main()
